package main

import (
	"fmt"
	"math"
	"time"
)

const idleBuffer = 512

// runIdle holds connections that have nothing to do.
func (o options) runIdle(server *server) (*report, error) {
	const everySecond = 1000
	p := o.newPhase(server, "idle")
	defer p.closeAll()
	channel := newChannelTally("channel0", &p.tally, 0)
	if err := server.createTopic(p.topics[0], []string{channel.name}); err != nil {
		return nil, err
	}
	if _, err := server.settle(); err != nil {
		return nil, err
	}
	before, err := server.residentBytes()
	if err != nil {
		return nil, err
	}
	for i := 0; i < o.idle; i++ {
		c, err := subscribe(o.tcp, o.layers, p.topics[0], channel, everySecond, 0)
		if err != nil {
			return nil, err
		}
		p.consumers = append(p.consumers, c)
		go c.run(idleBuffer)
		if err := c.ready(o.rdy); err != nil {
			return nil, err
		}
	}
	// Heartbeats go on meanwhile: there is no rest to wait for.
	time.Sleep(everySecond * time.Millisecond)
	begin, err := server.read()
	if err != nil {
		return nil, err
	}
	heartbeats := p.tally.heartbeats.Load()
	time.Sleep(time.Duration(o.seconds * float64(time.Second)))
	end, err := server.read()
	if err != nil {
		return nil, err
	}
	r := &report{Messages: int(p.tally.heartbeats.Load() - heartbeats), Connections: o.idle}
	r.Seconds = end.at.Sub(begin.at).Seconds()
	r.spent(begin, end)
	if r.RSS, err = server.residentBytes(); err != nil {
		return nil, err
	}
	r.RSSOfThem = r.RSS - before
	return r, p.checkIdle(r)
}

func (p *phase) checkIdle(r *report) error {
	if err := p.tally.err(); err != nil {
		return err
	}
	stats, err := p.server.stats(p.topics)
	if err != nil {
		return err
	}
	if count := stats.Channels[0].ConsumerCount; count != p.idle {
		return fmt.Errorf("wrong: of %d connections %d are left", p.idle, count)
	}
	if least := int(0.9 * math.Floor(r.Seconds) * float64(p.idle)); r.Messages < least {
		return fmt.Errorf("wrong: %d heartbeats came, not at least %d", r.Messages, least)
	}
	return nil
}
