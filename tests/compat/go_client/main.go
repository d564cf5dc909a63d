// Produces numbered records and consumes the topic in a group until standard input is closed, with franz-go's client.
//
// It prints "acknowledged A read R" four times a second and at its end, when all records are acknowledged, and ends
// with code 1 at the first error that the client does not retry.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	sendPause   = 10 * time.Millisecond
	reportPause = 250 * time.Millisecond
)

var acknowledged, read atomic.Int64

func fail(what string, err error) {
	fmt.Fprintf(os.Stderr, "%s: %v\n", what, err)
	os.Exit(1)
}

func open(options ...kgo.Opt) *kgo.Client {
	client, err := kgo.NewClient(options...)
	if err != nil {
		fail("client", err)
	}
	return client
}

func produce(client *kgo.Client, topic, name string, stop <-chan struct{}) {
	for number := 0; ; number++ {
		select {
		case <-stop:
			if err := client.Flush(context.Background()); err != nil {
				fail("flush", err)
			}
			return
		case <-time.After(sendPause):
		}
		record := &kgo.Record{Topic: topic, Value: []byte(fmt.Sprintf("%s-%d", name, number))}
		client.Produce(context.Background(), record, func(_ *kgo.Record, err error) {
			if err != nil {
				fail("produce", err)
			}
			acknowledged.Add(1)
		})
	}
}

func consume(client *kgo.Client) {
	for {
		fetches := client.PollFetches(context.Background())
		if fetches.IsClientClosed() {
			return
		}
		read.Add(int64(fetches.NumRecords()))
	}
}

func report() {
	fmt.Printf("acknowledged %d read %d\n", acknowledged.Load(), read.Load())
}

func main() {
	bootstrap, topic, name := strings.Split(os.Args[1], ","), os.Args[2], os.Args[3]
	producer := open(kgo.SeedBrokers(bootstrap...))
	consumer := open(
		kgo.SeedBrokers(bootstrap...),
		kgo.ConsumeTopics(topic),
		kgo.ConsumerGroup(name),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)
	go consume(consumer)
	go func() {
		for range time.Tick(reportPause) {
			report()
		}
	}()
	stop := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(stop)
	}()
	produce(producer, topic, name, stop)
	report()
}
