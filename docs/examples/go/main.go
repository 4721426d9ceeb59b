// A first message with the stock Go client: go run . [SERVICE_URL]
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

func main() {
	url := "pulsar://127.0.0.1:6650"
	if len(os.Args) > 1 {
		url = os.Args[1]
	}
	client, err := pulsar.NewClient(pulsar.ClientOptions{URL: url})
	check(err)
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()

	consumer, err := client.Subscribe(pulsar.ConsumerOptions{
		Topic:                       "greetings",
		SubscriptionName:            "go",
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
	})
	check(err)
	defer consumer.Close()

	producer, err := client.CreateProducer(pulsar.ProducerOptions{Topic: "greetings"})
	check(err)
	defer producer.Close()
	id, err := producer.Send(ctx, &pulsar.ProducerMessage{Key: "go", Payload: []byte("Hello from Go")})
	check(err)
	fmt.Println("published", id)

	for {
		message, err := consumer.Receive(ctx)
		check(err)
		check(consumer.Ack(message))
		fmt.Println("received", string(message.Payload()))
		if string(message.Payload()) == "Hello from Go" {
			return
		}
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
