"""Opens and checks what a start needs: directories, the metadata store, file descriptors; reports that it is done."""
