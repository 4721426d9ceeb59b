// The stock Go client in every mode it knows: program SERVICE_URL HTTP_URL KEYS SCENARIO...
//
// Each scenario uses topics of its own and prints one JSON line, {"scenario": NAME, "facts": {...}} or {"scenario":
// NAME, "error": TEXT}. What the facts must be is said once, for all languages, in tests/clients/scenarios.py; a
// program only observes. Scenarios run side by side, because most of them mostly wait. KEYS is a folder with
// public.pem and private.pem.
//
// kill is for a cluster: it prints {"event": "running"}, publishes until a line comes in on stdin, then some more.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"sort"
	"strconv"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
)

const (
	atOnce     = 6
	patience   = 20 * time.Second
	quiet      = 300 * time.Millisecond
	slowBatch  = 5 * time.Second
	largeBytes = 11 << 20 // more than two of the largest messages that a server takes
	killTopics = 4
	rounds     = 50
)

type facts map[string]any

// A scenario panics with an error where something fails that must not.
var scenarios = map[string]func(*world) facts{
	"exclusive": exclusive, "failover": failover, "shared": shared, "key_shared": keyShared, "sticky": sticky,
	"batching": batching, "key_batching": keyBatching, "compression": compression, "chunking": chunking,
	"encryption": encryption, "deduplication": deduplication, "access_modes": accessModes,
	"non_persistent": nonPersistent, "http_lookup": httpLookup, "cumulative": cumulative, "batch_index": batchIndex,
	"ack_receipts": ackReceipts, "negative": negative, "dead_letter": deadLetter, "retry_letter": retryLetter,
	"delayed": delayed, "seek": seek, "reader": reader, "pattern": pattern, "discovery": discovery, "partitions": partitions,
	"growth": growth, "compaction": compaction, "terminated": terminated, "transactions": transactions, "schemas": schemas, "kill": kill,
}

func main() {
	var running sync.WaitGroup
	places := make(chan bool, atOnce)
	for _, name := range os.Args[4:] {
		running.Add(1)
		places <- true
		go func() {
			defer func() { <-places; running.Done() }()
			play(name)
		}()
	}
	running.Wait()
}

func play(name string) {
	defer func() {
		if failure := recover(); failure != nil {
			tell(facts{"scenario": name, "error": fmt.Sprint(failure)})
		}
	}()
	made := &world{http: os.Args[2], keys: os.Args[3], name: "go-" + name}
	made.client = must(connect(pulsar.ClientOptions{URL: os.Args[1]}))
	defer made.client.Close()
	tell(facts{"scenario": name, "facts": scenarios[name](made)})
}

var telling sync.Mutex

func tell(what facts) {
	line := must(json.Marshal(what))
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

// What a scenario has: a client, an admin interface, keys, and topics named after it.
type world struct {
	client           pulsar.Client
	http, keys, name string
}

func connect(options pulsar.ClientOptions) (pulsar.Client, error) {
	options.Logger = log.NewLoggerWithSlog(slog.New(slog.NewTextHandler(io.Discard, nil)))
	return pulsar.NewClient(options)
}

func (w *world) topic(suffix string) string {
	return "persistent://public/default/" + w.name + suffix
}

func (w *world) producer(options pulsar.ProducerOptions) pulsar.Producer {
	return must(w.tryProducer(options))
}

// Without batching, unless the options say how long a batch may wait.
func (w *world) tryProducer(options pulsar.ProducerOptions) (pulsar.Producer, error) {
	if options.Topic == "" {
		options.Topic = w.topic("")
	}
	options.DisableBatching = options.BatchingMaxPublishDelay == 0
	return w.client.CreateProducer(options)
}

func (w *world) subscribe(options pulsar.ConsumerOptions) pulsar.Consumer {
	return must(w.trySubscribe(options))
}

func (w *world) trySubscribe(options pulsar.ConsumerOptions) (pulsar.Consumer, error) {
	if options.Topic == "" && options.TopicsPattern == "" {
		options.Topic = w.topic("")
	}
	options.SubscriptionName = "s"
	options.SubscriptionInitialPosition = pulsar.SubscriptionPositionEarliest
	return w.client.Subscribe(options)
}

// The path follows the topic's name; the answer's JSON.
func (w *world) admin(method, path string, body any) map[string]any {
	url := w.http + "/admin/v2/persistent/public/default/" + w.name + path
	var content io.Reader
	if body != nil {
		content = bytes.NewReader(must(json.Marshal(body)))
	}
	request := must(http.NewRequest(method, url, content))
	request.Header.Set("Content-Type", "application/json")
	answer := must(http.DefaultClient.Do(request))
	defer answer.Body.Close()
	raw := must(io.ReadAll(answer.Body))
	if answer.StatusCode >= 300 {
		panic(fmt.Sprintf("%s %s: %d %s", method, url, answer.StatusCode, raw))
	}
	var found map[string]any
	_ = json.Unmarshal(raw, &found) // many answers are empty, and some are no objects
	return found
}

func send(producer pulsar.Producer, message *pulsar.ProducerMessage) pulsar.MessageID {
	return must(producer.Send(context.Background(), message))
}

func publish(producer pulsar.Producer, values ...string) {
	for _, value := range values {
		send(producer, &pulsar.ProducerMessage{Payload: []byte(value)})
	}
}

// As few batches as the producer makes of them; the keys are the values' first letters where keyed.
func publishAtOnce(producer pulsar.Producer, keyed bool, values ...string) {
	for _, value := range values {
		message := &pulsar.ProducerMessage{Payload: []byte(value)}
		if keyed {
			message.Key = value[:1]
		}
		producer.SendAsync(context.Background(), message, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		})
	}
	check(producer.Flush())
}

func numbers(first, end int) []string {
	found := []string{}
	for number := first; number < end; number++ {
		found = append(found, strconv.Itoa(number))
	}
	return found
}

func next(consumer pulsar.Consumer) pulsar.Message {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return must(consumer.Receive(ctx))
}

// nil when nothing comes.
func maybe(consumer pulsar.Consumer) pulsar.Message {
	ctx, cancel := context.WithTimeout(context.Background(), quiet)
	defer cancel()
	message, err := consumer.Receive(ctx)
	if err != nil {
		return nil
	}
	return message
}

func take(consumer pulsar.Consumer, count int) []string {
	found := []string{}
	for len(found) < count {
		message := next(consumer)
		check(consumer.Ack(message))
		found = append(found, string(message.Payload()))
	}
	return found
}

// What comes until nothing comes any more.
func rest(consumer pulsar.Consumer) []string {
	found := []string{}
	for message := maybe(consumer); message != nil; message = maybe(consumer) {
		check(consumer.Ack(message))
		found = append(found, string(message.Payload()))
	}
	return found
}

func refusal[T any](_ T, err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func integers(texts []string) []int {
	found := []int{}
	for _, one := range texts {
		found = append(found, must(strconv.Atoi(one)))
	}
	sort.Ints(found)
	return found
}

func read(reader pulsar.Reader) string {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return string(must(reader.Next(ctx)).Payload())
}

func everything(w *world, suffix string) []string {
	reader := must(w.client.CreateReader(pulsar.ReaderOptions{
		Topic: w.topic(suffix), StartMessageID: pulsar.EarliestMessageID()}))
	defer reader.Close()
	found := []string{}
	for reader.HasNext() {
		found = append(found, read(reader))
	}
	return found
}
