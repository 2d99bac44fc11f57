package main

import (
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"math/rand"
	"sync"
	"time"

	"github.com/nsqio/go-nsq"
)

const (
	raw   = "raw"
	goNSQ = "go-nsq"
)

// library is what publishes and consumes through go-nsq, each with a connection of its own.
type library struct {
	producers []*nsq.Producer
	consumers []libraryConsumer
	bodies    [][]byte // used in turn, of each message a copy
	late      []int64
}

type libraryConsumer struct {
	*nsq.Consumer
	channel *channelTally
}

func (l *library) close() {
	for _, producer := range l.producers {
		producer.Stop()
	}
	for _, consumer := range l.consumers {
		consumer.Stop()
		<-consumer.StopChan
	}
	l.producers, l.consumers = nil, nil
}

func (l *library) sayReady(count func(*channelTally) int) {
	for _, consumer := range l.consumers {
		consumer.ChangeMaxInFlight(count(consumer.channel))
	}
}

func (p *phase) libraryConfig() *nsq.Config {
	config := nsq.NewConfig()
	config.UserAgent = "load/1"
	config.TlsV1 = p.layers.tls
	config.TlsConfig = &tls.Config{InsecureSkipVerify: true}
	config.Snappy = p.layers.compression == "snappy"
	config.Deflate = p.layers.compression == "deflate"
	if p.unbuffered {
		config.OutputBufferSize = -1
	}
	return config
}

func (p *phase) connectLibrary(random *rand.Rand) error {
	count := 1
	if p.spread {
		count = spreads
	}
	for i := 0; i < count; i++ {
		p.library.bodies = append(p.library.bodies, randomBody(p.bodySize(random), random))
	}
	for i := 0; i < p.options.publishers; i++ {
		producer, err := nsq.NewProducer(p.tcp, p.libraryConfig())
		if err != nil {
			return err
		}
		producer.SetLoggerLevel(nsq.LogLevelError)
		p.library.producers = append(p.library.producers, producer)
		if err := producer.Ping(); err != nil {
			return err
		}
	}
	return nil
}

func (p *phase) subscribeLibrary(topic string, channel *channelTally) error {
	config := p.libraryConfig()
	config.MaxInFlight = 0
	if !p.isFilled() {
		config.MaxInFlight = p.rdyOf(channel)
	}
	consumer, err := nsq.NewConsumer(topic, channel.name, config)
	if err != nil {
		return err
	}
	consumer.SetLoggerLevel(nsq.LogLevelError)
	ages := p.ages || p.rate > 0
	consumer.AddHandler(nsq.HandlerFunc(func(m *nsq.Message) error {
		now := time.Now().UnixNano()
		if m.Attempts != 1 {
			channel.all.fail(fmt.Errorf("consumer of %s: a message at its attempt %d", channel.name, m.Attempts))
		}
		if err := channel.note([]int{number(m.Body)}); err != nil {
			channel.all.fail(err)
		}
		if ages {
			channel.mutex.Lock()
			channel.ages = append(channel.ages, now-int64(binary.BigEndian.Uint64(m.Body[numberEnd:])))
			channel.mutex.Unlock()
		}
		channel.all.lastAt.Store(now)
		channel.all.received.Add(1)
		return nil
	}))
	if err := consumer.ConnectToNSQD(p.tcp); err != nil {
		return err
	}
	p.library.consumers = append(p.library.consumers, libraryConsumer{consumer, channel})
	return nil
}

// publishByLibrary publishes with all producers; the count is that of the messages sent, all of them answered.
func (p *phase) publishByLibrary(numbers *numbers) (int, error) {
	var group sync.WaitGroup
	counts, failures := make([]int, len(p.library.producers)), make([]error, len(p.library.producers))
	for place := range p.library.producers {
		group.Add(1)
		go func(place int) {
			defer group.Done()
			switch {
			case p.rate > 0:
				counts[place], failures[place] = p.publishAtMoments(place)
			case p.publish == "pub" && p.burst*p.outstanding > 1:
				counts[place], failures[place] = p.publishAsync(place, numbers)
			default:
				counts[place], failures[place] = p.publishInTurn(place, numbers)
			}
		}(place)
	}
	group.Wait()
	sum := 0
	for place, count := range counts {
		sum += count
		if failures[place] != nil {
			return sum, fmt.Errorf("producer: %w", failures[place])
		}
	}
	return sum, nil
}

func (p *phase) body(number int) []byte {
	body := append([]byte(nil), p.library.bodies[number%len(p.library.bodies)]...)
	putNumber(body, number)
	return body
}

// topicOf is that of a producer's turn; together their messages go to all topics in turn.
func (p *phase) topicOf(place, turn int) string {
	return p.topics[(place+p.options.publishers*turn)%len(p.topics)]
}

// publishInTurn waits for each answer.
func (p *phase) publishInTurn(place int, numbers *numbers) (int, error) {
	producer, count := p.library.producers[place], 0
	for turn := 0; ; turn++ {
		// The others count in writes of -burst commands too.
		first, ok := numbers.take(p.batch * p.burst)
		if !ok {
			return count, nil
		}
		for command := 0; command < p.burst; command++ {
			topic, at := p.topicOf(place, turn*p.burst+command), first+command*p.batch
			var err error
			if p.publish == "pub" {
				err = producer.Publish(topic, p.body(at))
			} else {
				bodies := make([][]byte, p.batch)
				for i := range bodies {
					bodies[i] = p.body(at + i)
				}
				err = producer.MultiPublish(topic, bodies)
			}
			if err != nil {
				return count, err
			}
			count += p.batch
		}
	}
}

// publishAsync has up to -burst times -outstanding messages unanswered.
func (p *phase) publishAsync(place int, numbers *numbers) (int, error) {
	producer, count, waiting := p.library.producers[place], 0, 0
	answers := make(chan *nsq.ProducerTransaction, p.burst*p.outstanding)
	for turn := 0; ; turn++ {
		first, ok := numbers.take(p.burst)
		if !ok {
			break
		}
		for i := 0; i < p.burst; i++ {
			if waiting == cap(answers) {
				if answer := <-answers; answer.Error != nil {
					return count, answer.Error
				}
				waiting--
			}
			if err := producer.PublishAsync(p.topicOf(place, turn*p.burst+i), p.body(first+i), answers); err != nil {
				return count, err
			}
			waiting++
			count++
		}
	}
	for ; waiting > 0; waiting-- {
		if answer := <-answers; answer.Error != nil {
			return count, answer.Error
		}
	}
	return count, nil
}

// publishAtMoments publishes at the rate, whether the messages before are answered or not.
func (p *phase) publishAtMoments(place int) (int, error) {
	producer, count := p.library.producers[place], p.atMoments()
	answers := make(chan *nsq.ProducerTransaction, count)
	begin := time.Now()
	for i := 0; i < count; i++ {
		moment := begin.Add(time.Duration(float64(i) / p.rate * float64(time.Second)))
		time.Sleep(time.Until(moment))
		now := time.Now()
		p.library.late = append(p.library.late, int64(now.Sub(moment)))
		body := p.body(i)
		binary.BigEndian.PutUint64(body[numberEnd:], uint64(now.UnixNano()))
		if err := producer.PublishAsync(p.topics[0], body, answers); err != nil {
			return i, err
		}
	}
	for i := 0; i < count; i++ {
		if answer := <-answers; answer.Error != nil {
			return i, answer.Error
		}
	}
	return count, nil
}

// isAnswering: FINs of the library are still on their way.
func (p *phase) isAnswering(stats *topicStats) bool {
	for _, channel := range stats.Channels {
		if p.client == goNSQ && channel.InFlight > 0 {
			return true
		}
	}
	return false
}
