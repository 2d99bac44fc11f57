module gonsq

go 1.21

require github.com/nsqio/go-nsq v1.1.0

// go-nsq asks for v0.0.1; NSQ itself is built with this one.
require github.com/golang/snappy v0.0.4 // indirect
