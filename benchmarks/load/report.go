package main

import (
	"math"
	"sort"
)

// report is what one run found out. Times are nanoseconds unless they say otherwise.
type report struct {
	Messages    int      `json:"messages"`
	Seconds     float64  `json:"seconds"`
	ServerCPU   int64    `json:"server_cpu_ns"`
	LoadCPU     int64    `json:"load_cpu_ns"`
	OthersCPU   int64    `json:"others_cpu_ns"` // all other processes, while this ran
	RSS         int64    `json:"rss_bytes"`
	Connections int      `json:"connections,omitempty"` // idle ones, and
	RSSOfThem   int64    `json:"rss_of_connections,omitempty"`
	Asked       float64  `json:"asked_rate,omitempty"`
	Capacity    float64  `json:"capacity,omitempty"` // messages a second just before, as fast as they were answered
	Latency     *latency `json:"latency,omitempty"`
	Abuses      int      `json:"abuses,omitempty"`       // what was answered or delivered to the other connections, and
	AbuseP99    float64  `json:"abuse_p99_us,omitempty"` // how late, where that has a moment, and
	AbuseEarly  int64    `json:"abuse_early,omitempty"`  // how many came before it
}

type latency struct {
	P50  float64 `json:"p50_us"`
	P99  float64 `json:"p99_us"`
	P999 float64 `json:"p999_us"`
	// The longest, where that is asked for.
	Longest float64 `json:"longest_us,omitempty"`
	// How late the writes were, which is the generator's doing unless the server takes nothing.
	LateP99 float64 `json:"late_p99_us"`
}

func (r *report) spent(begin, end reading) {
	r.ServerCPU = int64(end.server - begin.server)
	r.LoadCPU = int64(end.load - begin.load)
	r.OthersCPU = max(0, int64(end.busy-begin.busy)-r.ServerCPU-r.LoadCPU)
}

func percentiles(ages []int64) *latency {
	sort.Slice(ages, func(i, j int) bool { return ages[i] < ages[j] })
	at := func(fraction float64) float64 {
		if len(ages) == 0 {
			return 0
		}
		rank := int(math.Ceil(fraction*float64(len(ages)))) - 1
		return float64(ages[max(rank, 0)]) / 1e3
	}
	return &latency{P50: at(0.5), P99: at(0.99), P999: at(0.999)}
}
