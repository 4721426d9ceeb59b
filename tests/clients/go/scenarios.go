package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/crypto"
)

// -- subscription types

func exclusive(w *world) facts {
	consumer := w.subscribe(pulsar.ConsumerOptions{})
	second := refusal(w.trySubscribe(pulsar.ConsumerOptions{}))
	publish(w.producer(pulsar.ProducerOptions{}), numbers(0, 20)...)
	return facts{"received": take(consumer, 20), "second": second}
}

func failover(w *world) facts {
	active := w.subscribe(pulsar.ConsumerOptions{Type: pulsar.Failover, Name: "a"})
	standby := w.subscribe(pulsar.ConsumerOptions{Type: pulsar.Failover, Name: "b"})
	producer := w.producer(pulsar.ProducerOptions{})
	publish(producer, numbers(0, 10)...)
	first, idle := take(active, 10), rest(standby)
	active.Close()
	publish(producer, numbers(10, 20)...)
	return facts{"first": first, "idle": idle, "second": take(standby, 10)}
}

type turn struct {
	place int
	value string
}

// Messages taken from the consumers by turns, and by how many consumers.
func turns(consumers []pulsar.Consumer, count int) (found []turn, used int) {
	places := map[int]bool{}
	for deadline := time.Now().Add(patience); len(found) < count && time.Now().Before(deadline); {
		for place, consumer := range consumers {
			if message := maybe(consumer); message != nil {
				check(consumer.Ack(message))
				found = append(found, turn{place, string(message.Payload())})
				places[place] = true
			}
		}
	}
	return found, len(places)
}

func shared(w *world) facts {
	options := pulsar.ConsumerOptions{Type: pulsar.Shared, ReceiverQueueSize: 5}
	both := []pulsar.Consumer{w.subscribe(options), w.subscribe(options)}
	publish(w.producer(pulsar.ProducerOptions{}), numbers(0, 40)...)
	found, used := turns(both, 40)
	values := []string{}
	for _, one := range found {
		values = append(values, one.value)
	}
	return facts{"received": integers(values), "consumers": used}
}

// Ten keys, five messages each: every key stays with one consumer, in order.
func byKey(consumers []pulsar.Consumer, producer pulsar.Producer) facts {
	for number := range 5 {
		for _, key := range strings.Split("abcdefghij", "") {
			send(producer, &pulsar.ProducerMessage{Key: key, Payload: []byte(key + strconv.Itoa(number))})
		}
	}
	found, used := turns(consumers, 50)
	homes, order, apart := map[string]int{}, map[string]string{}, true
	for _, one := range found {
		key := one.value[:1]
		home, known := homes[key]
		apart = apart && (!known || home == one.place)
		homes[key] = one.place
		order[key] += one.value[1:]
	}
	orders := []string{}
	for _, one := range order {
		if !slices.Contains(orders, one) {
			orders = append(orders, one)
		}
	}
	slices.Sort(orders)
	return facts{"count": len(found), "orders": orders, "apart": apart, "consumers": used}
}

func keyShared(w *world) facts {
	both := []pulsar.Consumer{}
	for _, name := range []string{"a", "b"} {
		both = append(both, w.subscribe(pulsar.ConsumerOptions{Type: pulsar.KeyShared, Name: name}))
	}
	return byKey(both, w.producer(pulsar.ProducerOptions{}))
}

func sticky(w *world) facts {
	member := func(first, last int) (pulsar.Consumer, error) {
		policy := must(pulsar.NewKeySharedPolicySticky([]int{first, last}))
		return w.trySubscribe(pulsar.ConsumerOptions{Type: pulsar.KeyShared, KeySharedPolicy: policy})
	}
	both := []pulsar.Consumer{must(member(0, 32767)), must(member(32768, 65535))}
	overlap := refusal(member(30000, 40000))
	found := byKey(both, w.producer(pulsar.ProducerOptions{}))
	found["overlap"] = overlap
	return found
}

// -- publishing

func batching(w *world) facts {
	publishAtOnce(w.producer(pulsar.ProducerOptions{BatchingMaxPublishDelay: slowBatch}), false, numbers(0, 20)...)
	values, entries := inEntries(w.subscribe(pulsar.ConsumerOptions{}), 20)
	return facts{"received": values, "entries": entries}
}

// Values, and in how many entries they were.
func inEntries(consumer pulsar.Consumer, count int) (values []string, entries int) {
	ids := map[int64]bool{}
	for range count {
		message := next(consumer)
		check(consumer.Ack(message))
		values = append(values, string(message.Payload()))
		ids[message.ID().EntryID()] = true
	}
	return values, len(ids)
}

func keyBatching(w *world) facts {
	producer := w.producer(pulsar.ProducerOptions{
		BatchingMaxPublishDelay: slowBatch, BatcherBuilderType: pulsar.KeyBasedBatchBuilder})
	mixed := []string{}
	for number := range 5 {
		mixed = append(mixed, fmt.Sprint("a", number), fmt.Sprint("b", number))
	}
	publishAtOnce(producer, true, mixed...)
	values, entries := inEntries(w.subscribe(pulsar.ConsumerOptions{Type: pulsar.KeyShared}), 10)
	slices.Sort(values)
	return facts{"received": values, "entries": entries}
}

func compression(w *world) facts {
	kinds := map[string]pulsar.CompressionType{
		"lz4": pulsar.LZ4, "zlib": pulsar.ZLib, "zstd": pulsar.ZSTD, "snappy": pulsar.SNAPPY}
	values := []string{}
	for _, number := range numbers(0, 20) {
		values = append(values, number+strings.Repeat(" quire", 100))
	}
	found := facts{}
	for name, kind := range kinds {
		producer := w.producer(pulsar.ProducerOptions{
			Topic: w.topic("-" + name), CompressionType: kind, BatchingMaxPublishDelay: slowBatch})
		publishAtOnce(producer, false, values...)
		found[name] = slices.Equal(everything(w, "-"+name), values)
	}
	return found
}

func chunking(w *world) facts {
	large := bytes.Repeat([]byte("quire go"), largeBytes/8)
	consumer := w.subscribe(pulsar.ConsumerOptions{})
	producer := w.producer(pulsar.ProducerOptions{EnableChunking: true})
	send(producer, &pulsar.ProducerMessage{Payload: large})
	publish(producer, "small")
	first := next(consumer)
	check(consumer.Ack(first))
	same := bytes.Equal(first.Payload(), large)
	return facts{"size": len(first.Payload()), "same": same, "then": take(consumer, 1)[0]}
}

func encryption(w *world) facts {
	keys := crypto.NewFileKeyReader(w.keys+"/public.pem", w.keys+"/private.pem")
	producer := w.producer(pulsar.ProducerOptions{
		Encryption: &pulsar.ProducerEncryptionInfo{KeyReader: keys, Keys: []string{"key"}}})
	publish(producer, "secret")
	// To whom it was told no key, this client hands nothing out.
	without := must(w.client.Subscribe(pulsar.ConsumerOptions{
		Topic: w.topic(""), SubscriptionName: "blind", SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest}))
	sealed := maybe(without) == nil
	consumer := w.subscribe(pulsar.ConsumerOptions{Decryption: &pulsar.MessageDecryptionInfo{KeyReader: keys}})
	return facts{"received": take(consumer, 1), "sealed": sealed}
}

func deduplication(w *world) facts {
	w.admin("PUT", "", nil)
	w.admin("POST", "/deduplicationEnabled", true)
	numbered := func(producer pulsar.Producer, ids ...int64) {
		for _, id := range ids {
			send(producer, &pulsar.ProducerMessage{Payload: []byte(fmt.Sprint(id)), SequenceID: &id})
		}
	}
	first := w.producer(pulsar.ProducerOptions{Name: "p"})
	numbered(first, 0, 1, 1, 2)
	first.Close()
	second := w.producer(pulsar.ProducerOptions{Name: "p"})
	numbered(second, 2, 3)
	return facts{"received": everything(w, "")}
}

func accessModes(w *world) facts {
	alone := pulsar.ProducerOptions{ProducerAccessMode: pulsar.ProducerAccessModeExclusive}
	first := w.producer(alone)
	found := facts{
		"exclusive": refusal(w.tryProducer(alone)),
		"shared":    refusal(w.tryProducer(pulsar.ProducerOptions{})),
	}
	waiting := make(chan pulsar.Producer)
	go func() {
		waits := pulsar.ProducerOptions{ProducerAccessMode: pulsar.ProducerAccessModeWaitForExclusive}
		producer, _ := w.tryProducer(waits)
		waiting <- producer
	}()
	publish(first, "first")
	first.Close()
	publish(<-waiting, "second")
	found["received"] = everything(w, "")
	return found
}

func nonPersistent(w *world) facts {
	topic := "non-" + w.topic("")
	consumer := w.subscribe(pulsar.ConsumerOptions{Topic: topic})
	publish(w.producer(pulsar.ProducerOptions{Topic: topic}), numbers(0, 20)...)
	return facts{"received": take(consumer, 20)}
}

func httpLookup(w *world) facts {
	client := must(connect(pulsar.ClientOptions{URL: w.http}))
	defer client.Close()
	publish(must(client.CreateProducer(pulsar.ProducerOptions{Topic: w.topic("")})), "looked up")
	return facts{"received": everything(w, "")}
}

// -- acknowledgements and redelivery

func cumulative(w *world) facts {
	publish(w.producer(pulsar.ProducerOptions{}), numbers(0, 10)...)
	consumer := w.subscribe(pulsar.ConsumerOptions{})
	for number := range 10 {
		if message := next(consumer); number == 6 {
			check(consumer.AckCumulative(message))
		}
	}
	consumer.Close()
	return facts{"left": take(w.subscribe(pulsar.ConsumerOptions{}), 3)}
}

func batchIndex(w *world) facts {
	publishAtOnce(w.producer(pulsar.ProducerOptions{BatchingMaxPublishDelay: slowBatch}), false, numbers(0, 10)...)
	options := pulsar.ConsumerOptions{Type: pulsar.Shared, EnableBatchIndexAcknowledgment: true}
	consumer := w.subscribe(options)
	for number := range 10 {
		if message := next(consumer); number%2 == 0 {
			check(consumer.Ack(message))
		}
	}
	consumer.Close()
	again := w.subscribe(options)
	left := append(take(again, 5), rest(again)...)
	slices.Sort(left)
	return facts{"left": left}
}

func ackReceipts(w *world) facts {
	publish(w.producer(pulsar.ProducerOptions{}), numbers(0, 10)...)
	options := pulsar.ConsumerOptions{Type: pulsar.Shared, AckWithResponse: true}
	consumer := w.subscribe(options)
	for number := range 10 {
		if message := next(consumer); number < 5 {
			check(consumer.Ack(message))
		}
	}
	consumer.Close()
	again := w.subscribe(options)
	return facts{"left": append(take(again, 5), rest(again)...)}
}

func negative(w *world) facts {
	publish(w.producer(pulsar.ProducerOptions{}), numbers(0, 5)...)
	consumer := w.subscribe(pulsar.ConsumerOptions{Type: pulsar.Shared, NackRedeliveryDelay: quiet})
	for range 5 {
		if message := next(consumer); string(message.Payload()) == "2" {
			consumer.Nack(message)
		} else {
			check(consumer.Ack(message))
		}
	}
	again := next(consumer)
	return facts{"again": string(again.Payload()), "count": again.RedeliveryCount()}
}

func deadLetter(w *world) facts {
	consumer := w.subscribe(pulsar.ConsumerOptions{
		Type: pulsar.Shared, NackRedeliveryDelay: quiet,
		DLQ: &pulsar.DLQPolicy{MaxDeliveries: 3, DeadLetterTopic: w.topic("-dead")}})
	dead := w.subscribe(pulsar.ConsumerOptions{Topic: w.topic("-dead"), Type: pulsar.Shared})
	publish(w.producer(pulsar.ProducerOptions{}), "poison")
	counts := []uint32{}
	for range 3 {
		message := next(consumer)
		counts = append(counts, message.RedeliveryCount())
		consumer.Nack(message)
	}
	// The client takes the fourth delivery for itself, and only while somebody receives.
	go maybe(consumer)
	return facts{"counts": counts, "dead": take(dead, 1)}
}

func retryLetter(w *world) facts {
	consumer := w.subscribe(pulsar.ConsumerOptions{
		Type: pulsar.Shared, RetryEnable: true,
		DLQ: &pulsar.DLQPolicy{
			MaxDeliveries: 2, RetryLetterTopic: w.topic("-retry"), DeadLetterTopic: w.topic("-dead")}})
	dead := w.subscribe(pulsar.ConsumerOptions{Topic: w.topic("-dead"), Type: pulsar.Shared})
	publish(w.producer(pulsar.ProducerOptions{}), "poison")
	deliveries := 0
	for range 3 {
		consumer.ReconsumeLater(next(consumer), quiet)
		deliveries++
	}
	return facts{"deliveries": deliveries, "dead": take(dead, 1)}
}

func delayed(w *world) facts {
	consumer := w.subscribe(pulsar.ConsumerOptions{Type: pulsar.Shared})
	producer := w.producer(pulsar.ProducerOptions{})
	due := time.Now().Add(time.Second)
	send(producer, &pulsar.ProducerMessage{Payload: []byte("later"), DeliverAt: due})
	publish(producer, "now")
	order := take(consumer, 2)
	return facts{"order": order, "early": time.Now().Before(due.Truncate(time.Millisecond))}
}

// -- positions and topics

func seek(w *world) facts {
	producer := w.producer(pulsar.ProducerOptions{})
	publish(producer, numbers(0, 5)...)
	time.Sleep(50 * time.Millisecond)
	between := time.Now()
	time.Sleep(50 * time.Millisecond)
	publish(producer, numbers(5, 10)...)
	consumer := w.subscribe(pulsar.ConsumerOptions{StartMessageIDInclusive: true})
	// This client seeks only to ids of messages that were received: others know no partition.
	all, ids := []string{}, []pulsar.MessageID{}
	for range 10 {
		message := next(consumer)
		check(consumer.Ack(message))
		all, ids = append(all, string(message.Payload())), append(ids, message.ID())
	}
	found := facts{"all": all}
	check(consumer.Seek(ids[3]))
	found["from_id"] = take(consumer, 7)
	check(consumer.SeekByTime(between))
	found["from_time"] = take(consumer, 5)
	check(consumer.Seek(ids[0]))
	found["from_start"] = take(consumer, 10)
	return found
}

func reader(w *world) facts {
	producer, ids := w.producer(pulsar.ProducerOptions{}), []pulsar.MessageID{}
	for _, number := range numbers(0, 5) {
		ids = append(ids, send(producer, &pulsar.ProducerMessage{Payload: []byte(number)}))
	}
	from := func(id pulsar.MessageID) pulsar.Reader {
		return must(w.client.CreateReader(pulsar.ReaderOptions{Topic: w.topic(""), StartMessageID: id}))
	}
	one := from(ids[1])
	found := facts{"after": []string{read(one), read(one), read(one)}, "more": one.HasNext()}
	// This client seeks to no id that was not received, and by time not to before where it started.
	again := from(pulsar.EarliestMessageID())
	read(again)
	check(again.SeekByTime(time.UnixMilli(1)))
	found["head"] = read(again)
	late := from(pulsar.LatestMessageID())
	publish(producer, "5")
	found["late"] = read(late)
	found["all"] = everything(w, "")
	return found
}

func pattern(w *world) facts {
	for _, name := range []string{"a", "b"} {
		publish(w.producer(pulsar.ProducerOptions{Topic: w.topic("-" + name)}), name)
	}
	received := take(w.subscribe(pulsar.ConsumerOptions{TopicsPattern: w.topic("-.*")}), 2)
	slices.Sort(received)
	return facts{"received": received}
}

// A pattern finds a topic that comes later.
func discovery(w *world) facts {
	consumer := w.subscribe(pulsar.ConsumerOptions{TopicsPattern: w.topic("-.*"), AutoDiscoveryPeriod: time.Second})
	publish(w.producer(pulsar.ProducerOptions{Topic: w.topic("-a")}), "a")
	return facts{"received": take(consumer, 1)}
}

func partitions(w *world) facts {
	w.admin("PUT", "/partitions", 3)
	consumer := w.subscribe(pulsar.ConsumerOptions{})
	turn := 0
	publish(w.producer(pulsar.ProducerOptions{MessageRouter: func(*pulsar.ProducerMessage, pulsar.TopicMetadata) int {
		turn++
		return turn % 3
	}}), numbers(0, 30)...)
	values, topics := []string{}, map[string]bool{}
	for range 30 {
		message := next(consumer)
		values = append(values, string(message.Payload()))
		topics[message.Topic()] = true
	}
	return facts{"received": integers(values), "partitions": len(topics)}
}

// A producer and a consumer that stay meet new partitions.
func growth(w *world) facts {
	w.admin("PUT", "/partitions", 2)
	consumer := w.subscribe(pulsar.ConsumerOptions{AutoDiscoveryPeriod: time.Second})
	turn := 0
	producer := w.producer(pulsar.ProducerOptions{
		PartitionsAutoDiscoveryInterval: time.Second,
		MessageRouter: func(_ *pulsar.ProducerMessage, topic pulsar.TopicMetadata) int {
			turn++
			return turn % int(topic.NumPartitions())
		}})
	received := []string{}
	until := func(wanted int) int {
		topics := map[string]bool{}
		for deadline := time.Now().Add(patience); len(topics) < wanted && time.Now().Before(deadline); {
			publish(producer, strconv.Itoa(len(received)))
			message := next(consumer)
			check(consumer.Ack(message))
			received = append(received, string(message.Payload()))
			topics[message.Topic()] = true
		}
		return len(topics)
	}
	before := until(2)
	w.admin("POST", "/partitions", 4)
	after, published := until(4), len(received)
	received = append(received, rest(consumer)...)
	exact := fmt.Sprint(integers(received)) == fmt.Sprint(integers(numbers(0, published)))
	return facts{"before": before, "after": after, "exact": exact}
}

func compaction(w *world) facts {
	producer := w.producer(pulsar.ProducerOptions{})
	for _, one := range []string{"a1", "b1", "a2", "c1"} {
		send(producer, &pulsar.ProducerMessage{Key: one[:1], Payload: []byte(one)})
	}
	send(producer, &pulsar.ProducerMessage{Key: "c", Payload: []byte{}})
	w.admin("PUT", "/compaction", nil)
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if w.admin("GET", "/compaction", nil)["status"] == "SUCCESS" {
			break
		}
	}
	return facts{"view": take(w.subscribe(pulsar.ConsumerOptions{ReadCompacted: true}), 2)}
}

func terminated(w *world) facts {
	publish(w.producer(pulsar.ProducerOptions{}), numbers(0, 3)...)
	w.admin("POST", "/terminate", nil)
	refused := refusal(w.tryProducer(pulsar.ProducerOptions{}))
	return facts{"refused": refused, "received": take(w.subscribe(pulsar.ConsumerOptions{}), 3)}
}

const (
	order  = `{"type": "record", "name": "Order", "fields": [{"name": "item", "type": "string"}]}`
	priced = `{"type": "record", "name": "Priced", "fields": [{"name": "item", "type": "string"},
		{"name": "cents", "type": "int", "default": 1}]}`
	strict = `{"type": "record", "name": "Strict", "fields": [{"name": "item", "type": "string"},
		{"name": "euros", "type": "int"}]}`
)

func schemas(w *world) facts {
	with := func(definition string) pulsar.ProducerOptions {
		return pulsar.ProducerOptions{Schema: pulsar.NewAvroSchema(definition, nil)}
	}
	send(w.producer(with(order)), &pulsar.ProducerMessage{Value: map[string]any{"item": "paper"}})
	send(w.producer(with(priced)), &pulsar.ProducerMessage{Value: map[string]any{"item": "ink", "cents": 7}})
	refused := refusal(w.tryProducer(with(strict)))
	consumer := w.subscribe(pulsar.ConsumerOptions{Schema: pulsar.NewAvroSchema(priced, nil)})
	received := []string{}
	for range 2 {
		var value map[string]any
		check(next(consumer).GetSchemaValue(&value))
		received = append(received, value["item"].(string))
	}
	return facts{"received": received, "refused": refused}
}

func transactions(w *world) facts {
	return facts{"refused": refusal(connect(pulsar.ClientOptions{URL: os.Args[1], EnableTransaction: true}))}
}

// -- a cluster

func kill(w *world) facts {
	var told atomic.Bool
	go func() {
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
		told.Store(true)
	}()
	producers, following := []pulsar.Producer{}, []chan []string{}
	for number := range killTopics {
		suffix := fmt.Sprint("-", number)
		w.admin("PUT", suffix, nil)
		w.admin("POST", suffix+"/deduplicationEnabled", true)
		consumer := w.subscribe(pulsar.ConsumerOptions{Topic: w.topic(suffix)})
		found := make(chan []string)
		go func() { found <- follow(consumer) }()
		following = append(following, found)
		producers = append(producers, w.producer(pulsar.ProducerOptions{Topic: w.topic(suffix), SendTimeout: -1}))
	}
	count, after := 0, 0
	round := func(value string) {
		for _, producer := range producers {
			publish(producer, value)
		}
	}
	for ; after < rounds; count++ {
		round(strconv.Itoa(count))
		if told.Load() {
			after++
		}
		if count == rounds {
			tell(facts{"event": "running"})
		}
	}
	round("end")
	exact := []bool{}
	for _, found := range following {
		exact = append(exact, slices.Equal(<-found, numbers(0, count)))
	}
	return facts{"exact": exact, "enough": count >= 2*rounds}
}

// The numbers up to the end, each where it came first.
func follow(consumer pulsar.Consumer) []string {
	seen, found := map[string]bool{}, []string{}
	for {
		message, err := consumer.Receive(context.Background())
		if err != nil {
			return append(found, err.Error())
		}
		_ = consumer.Ack(message) // fails while the connection is away; then it comes again
		value := string(message.Payload())
		if value == "end" {
			return found
		}
		if !seen[value] {
			seen[value] = true
			found = append(found, value)
		}
	}
}
