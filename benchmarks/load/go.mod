module load

go 1.21

// NSQ's library for Go, which -client=go-nsq uses.
require github.com/nsqio/go-nsq v1.1.0

// The one NSQ's own clients use.
require github.com/golang/snappy v0.0.4
