package main

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// runChurn has connections that come and go: each identifies itself, with TLS where that is asked for, and closes.
func (o options) runChurn(server *server) (*report, error) {
	if _, err := o.comeAndGo(o.warmup); err != nil {
		return nil, err
	}
	begin, err := server.settle()
	if err != nil {
		return nil, err
	}
	count, err := o.comeAndGo(o.seconds)
	if err != nil {
		return nil, err
	}
	last := time.Now()
	end, err := server.settle()
	if err != nil {
		return nil, err
	}
	r := &report{Messages: count, Seconds: last.Sub(begin.at).Seconds()}
	r.spent(begin, end)
	r.RSS, err = server.residentBytes()
	return r, err
}

func (o options) comeAndGo(seconds float64) (int, error) {
	var group sync.WaitGroup
	var count atomic.Int64
	failures := make(chan error, o.publishers)
	deadline := time.Now().Add(time.Duration(seconds * float64(time.Second)))
	for i := 0; i < o.publishers; i++ {
		group.Add(1)
		go func() {
			defer group.Done()
			for time.Now().Before(deadline) && int(count.Load()) < o.most {
				conn, err := connect(o.tcp, o.layers, heartbeatMs, 0)
				if err != nil {
					failures <- fmt.Errorf("after %d connections: %w", count.Load(), err)
					return
				}
				conn.Close()
				count.Add(1)
			}
		}()
	}
	group.Wait()
	select {
	case err := <-failures:
		return 0, err
	default:
		return int(count.Load()), nil
	}
}
