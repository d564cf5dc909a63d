// Starts and stops clusters of kfake, one after the other: a line on the standard input is a topic, and the answer its
// bootstrap address; an empty line stops the cluster, and an empty line is the answer.
package main

import (
	"bufio"
	"fmt"
	"os"

	"github.com/twmb/franz-go/pkg/kfake"
)

func main() {
	lines := bufio.NewScanner(os.Stdin)
	var cluster *kfake.Cluster
	for lines.Scan() {
		if topic := lines.Text(); topic != "" {
			started, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, topic))
			if err != nil {
				panic(err)
			}
			cluster = started
			fmt.Println(cluster.ListenAddrs()[0])
		} else {
			cluster.Close()
			fmt.Println()
		}
	}
}
