package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/nsqio/go-nsq"
)

type publishReport struct {
	Published int     `json:"published"`
	Seconds   float64 `json:"seconds"`
}

// sender starts one command; its answer is sent to done.
type sender func(done chan *nsq.ProducerTransaction) error

func publish(arguments []string) (any, error) {
	flags := flag.NewFlagSet("publish", flag.ExitOnError)
	tcp := flags.String("tcp", "", "host:port of nsqd")
	topic := flags.String("topic", "", "")
	file := flags.String("file", "", "the file to send, one message for each line")
	command := flags.String("command", "pub", "pub, mpub or dpub")
	batch := flags.Int("batch", 100, "messages in one MPUB")
	deferMs := flags.Int("defer-ms", 0, "milliseconds of a DPUB's delay")
	window := flags.Int("window", 200, "largest number of unanswered commands")
	var negotiation negotiation
	negotiation.define(flags)
	_ = flags.Parse(arguments)

	bodies, err := numberedLines(*file)
	if err != nil {
		return nil, err
	}
	config, err := negotiation.config()
	if err != nil {
		return nil, err
	}
	producer, err := nsq.NewProducer(*tcp, config)
	if err != nil {
		return nil, err
	}
	defer producer.Stop()
	producer.SetLogger(quiet, nsq.LogLevelError)
	if err := producer.Ping(); err != nil {
		return nil, fmt.Errorf("no connection to nsqd at %s: %w", *tcp, err)
	}

	var commands []sender
	switch *command {
	case "pub":
		for _, body := range bodies {
			body := body
			commands = append(commands, func(done chan *nsq.ProducerTransaction) error {
				return producer.PublishAsync(*topic, body, done)
			})
		}
	case "dpub":
		delay := time.Duration(*deferMs) * time.Millisecond
		for _, body := range bodies {
			body := body
			commands = append(commands, func(done chan *nsq.ProducerTransaction) error {
				return producer.DeferredPublishAsync(*topic, delay, body, done)
			})
		}
	case "mpub":
		for start := 0; start < len(bodies); start += *batch {
			batch := bodies[start:min(start+*batch, len(bodies))]
			commands = append(commands, func(done chan *nsq.ProducerTransaction) error {
				return producer.MultiPublishAsync(*topic, batch, done)
			})
		}
	default:
		return nil, fmt.Errorf("no such command: %s", *command)
	}

	started := time.Now()
	if err := sendAll(commands, *window); err != nil {
		return nil, fmt.Errorf("nsqd refused to publish: %w", err)
	}
	return publishReport{len(bodies), time.Since(started).Seconds()}, nil
}

// sendAll keeps at most window commands unanswered and returns when all are answered, or at the first refusal.
func sendAll(commands []sender, window int) error {
	// Large enough for every answer: go-nsq stops reading while an answer waits to be taken.
	done := make(chan *nsq.ProducerTransaction, window)
	unanswered := 0
	for _, send := range commands {
		if unanswered == window {
			if answer := <-done; answer.Error != nil {
				return answer.Error
			}
			unanswered--
		}
		if err := send(done); err != nil {
			return err
		}
		unanswered++
	}
	for ; unanswered > 0; unanswered-- {
		if answer := <-done; answer.Error != nil {
			return answer.Error
		}
	}
	return nil
}

// numberedLines returns the bodies for the lines of a file, with the last one even if it lacks a newline.
func numberedLines(file string) ([][]byte, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	lines := bytes.Split(content, []byte("\n"))
	if len(lines[len(lines)-1]) == 0 {
		lines = lines[:len(lines)-1]
	}
	bodies := make([][]byte, len(lines))
	for i, line := range lines {
		bodies[i] = append([]byte(fmt.Sprintf("%d\t", i+1)), line...)
	}
	return bodies, nil
}
