// The stock Go client with every kind of credentials: program CASES, a file with a line for each thing to try.
//
// A line is NAME=VALUE, with tabs between: name, url, authority, topic; do: produce or consume, with seconds: for so long,
// on one producer; with: the kind of credentials, whose files and words are beside it. All are tried at once, and each
// prints one JSON line, {"name": NAME, "error": TEXT}, with "" when it was done.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
)

const patience = 20 * time.Second

type trial map[string]string

func main() {
	var running sync.WaitGroup
	for _, line := range strings.Split(strings.TrimSpace(string(must(os.ReadFile(os.Args[1])))), "\n") {
		one := trial{}
		for _, field := range strings.Split(line, "\t") {
			name, value, _ := strings.Cut(field, "=")
			one[name] = value
		}
		running.Add(1)
		go func() {
			defer running.Done()
			tell(one["name"], try(one))
		}()
	}
	running.Wait()
}

// What a client says of a refusal: this one keeps the reason to its log.
type told struct {
	bytes.Buffer
	sync.Mutex
}

func (t *told) Write(line []byte) (int, error) {
	t.Lock()
	defer t.Unlock()
	return t.Buffer.Write(line)
}

func try(one trial) (failure error) {
	said := &told{}
	defer func() {
		if found := recover(); found != nil {
			said.Lock()
			failure = fmt.Errorf("%v: %s", found, said.Bytes())
			said.Unlock()
		}
	}()
	client := must(pulsar.NewClient(pulsar.ClientOptions{
		URL: one["url"], Authentication: credentials(one), TLSTrustCertsFilePath: one["authority"], TLSValidateHostname: true,
		OperationTimeout: 8 * time.Second,
		Logger:           log.NewLoggerWithSlog(slog.New(slog.NewTextHandler(said, &slog.HandlerOptions{Level: slog.LevelWarn}))),
	}))
	defer client.Close()
	lasts := must(time.ParseDuration(one["seconds"] + "s"))
	limit, cancel := context.WithTimeout(context.Background(), lasts+patience)
	defer cancel()
	if one["do"] == "consume" {
		consumer := must(client.Subscribe(pulsar.ConsumerOptions{
			Topic: one["topic"], SubscriptionName: "go-" + one["name"],
			SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
		}))
		defer consumer.Close()
		check(consumer.Ack(must(consumer.Receive(limit))))
		return nil
	}
	producer := must(client.CreateProducer(pulsar.ProducerOptions{Topic: one["topic"], SendTimeout: 8 * time.Second}))
	defer producer.Close()
	until := time.Now().Add(lasts)
	for {
		must(producer.Send(limit, &pulsar.ProducerMessage{Payload: []byte(one["name"])}))
		if !time.Now().Before(until) {
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func credentials(one trial) pulsar.Authentication {
	switch one["with"] {
	case "token":
		return pulsar.NewAuthenticationTokenFromFile(one["token"])
	case "basic":
		return must(pulsar.NewAuthenticationBasic(one["user"], one["password"]))
	case "tls":
		return pulsar.NewAuthenticationTLS(one["certificate"], one["key"])
	case "oauth2":
		return pulsar.NewAuthenticationOAuth2(map[string]string{
			"type": "client_credentials", "issuerUrl": one["issuer"], "clientId": one["user"], "audience": "quire",
			"privateKey": one["client_file"],
		})
	}
	return nil
}

var telling sync.Mutex

func tell(name string, failure error) {
	said := ""
	if failure != nil {
		said = failure.Error()
	}
	line := must(json.Marshal(map[string]string{"name": name, "error": said}))
	telling.Lock()
	defer telling.Unlock()
	fmt.Println(string(line))
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
