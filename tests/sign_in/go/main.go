// Signs in by each case of a file with franz-go's client, writes a record and reads it back.
//
// Its argument is a JSON file with a list of cases. It prints a line for each: its number, a tab, and "signed in" or the
// error.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

const patience = 40 * time.Second

type signIn struct {
	Bootstrap, Topic, Mechanism, User, Password, Token, Trusted, Certificate, Key string
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func (c signIn) options() []kgo.Opt {
	trusted, err := os.ReadFile(c.Trusted)
	check(err)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(trusted)
	config := &tls.Config{RootCAs: pool}
	if c.Certificate != "" {
		pair, err := tls.LoadX509KeyPair(c.Certificate, c.Key)
		check(err)
		config.Certificates = []tls.Certificate{pair}
	}
	options := []kgo.Opt{kgo.SeedBrokers(c.Bootstrap), kgo.DialTLSConfig(config), kgo.RequestRetries(0), kgo.RecordRetries(3)}
	var mechanism sasl.Mechanism
	switch c.Mechanism {
	case "SCRAM-SHA-256":
		mechanism = scram.Auth{User: c.User, Pass: c.Password}.AsSha256Mechanism()
	case "SCRAM-SHA-512":
		mechanism = scram.Auth{User: c.User, Pass: c.Password}.AsSha512Mechanism()
	case "PLAIN":
		mechanism = plain.Auth{User: c.User, Pass: c.Password}.AsMechanism()
	case "OAUTHBEARER":
		mechanism = oauth.Auth{Token: c.Token}.AsMechanism()
	default:
		return options
	}
	return append(options, kgo.SASL(mechanism))
}

func (c signIn) outcome() string {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	producer, err := kgo.NewClient(c.options()...)
	check(err)
	defer producer.Close()
	if err := producer.Ping(ctx); err != nil {
		return text(err)
	}
	record := &kgo.Record{Topic: c.Topic, Value: []byte("of franz-go")}
	if err := producer.ProduceSync(ctx, record).FirstErr(); err != nil {
		return text(err)
	}
	from := map[string]map[int32]kgo.Offset{c.Topic: {record.Partition: kgo.NewOffset().At(record.Offset)}}
	consumer, err := kgo.NewClient(append(c.options(), kgo.ConsumePartitions(from))...)
	check(err)
	defer consumer.Close()
	fetches := consumer.PollRecords(ctx, 1)
	if err := fetches.Err(); err != nil {
		return text(err)
	}
	if value := string(fetches.Records()[0].Value); value != string(record.Value) {
		return "read " + value
	}
	return "signed in"
}

func text(err error) string {
	said := err.Error()
	for inner := errors.Unwrap(err); inner != nil; inner = errors.Unwrap(inner) {
		if !strings.Contains(said, inner.Error()) {
			said += ": " + inner.Error()
		}
	}
	return strings.ReplaceAll(said, "\n", " ")
}

func main() {
	written, err := os.ReadFile(os.Args[1])
	check(err)
	var cases []signIn
	check(json.Unmarshal(written, &cases))
	outcomes := make([]string, len(cases))
	var all sync.WaitGroup
	for number := range cases {
		all.Add(1)
		go func() {
			defer all.Done()
			outcomes[number] = cases[number].outcome()
		}()
	}
	all.Wait()
	for number, outcome := range outcomes {
		fmt.Printf("%d\t%s\n", number, outcome)
	}
}
