module load

go 1.21

// The one NSQ's own clients use.
require github.com/golang/snappy v0.0.4
