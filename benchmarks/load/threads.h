// What is done where moments count, or one round trip after the other, by threads that Go's scheduler does not know of while
// they do it: it would wake others of the generator's threads beside them, on the CPUs that the server is to be woken on.
// What fails returns a sentence, which is not to be freed; NULL is success.
#include <stdint.h>

enum { HEAD_SIZE = 16 };

// A request of commands of one length, each with one body.
struct request {
	uint8_t *bytes;
	int64_t length;
	int64_t messages;
	int64_t first_body; // where it starts, in the first command
	int64_t delay;      // nanoseconds that a message is to be delivered after its write
};

// A message as it came.
struct arrival {
	int64_t came;            // nanoseconds since 1970
	uint8_t head[HEAD_SIZE]; // of its body
};

// Sends `most` messages, `rate` in a second, whatever the server does; what is due together is written together. The requests
// are taken in turn. `late` has room for `most`: by how many nanoseconds each of `writes` missed its moment.
const char *send_at_moments(int fd, const struct request *requests, int64_t count, double rate, int64_t most, int64_t *late,
	int64_t *writes);

// Sends up to `most` messages within so many nanoseconds, each when the one before was answered: `sent` of them. The
// requests are of one message each, and taken in turn.
const char *publish_in_turn(int fd, const struct request *requests, int64_t count, int64_t most, int64_t time, int64_t *sent);

// Reads so many OKs, and nothing else.
const char *expect_oks(int fd, int64_t count);

// Finishes so many messages, those of one read in one write, or what comes until the connection is shut down: `came` of
// them. `last` is the moment after the last FINs were written, in nanoseconds since 1970.
const char *finish_all(int fd, struct arrival *arrivals, int64_t count, int64_t *came, int64_t *last);

// A message that was published at a steady pace, in nanoseconds.
struct quiet_message {
	int64_t written; // the moment its write began
	int64_t late;    // by how much that missed its moment
	int64_t waited;  // from `written` until its OK had been read
};

// Sends the same request every `interval` nanoseconds, whatever the server does, until `stop` is not 0 or `most` have been sent,
// and reads the OKs meanwhile. Returns when all `sent` have their OK; it is an error if one has none within `patience`. The
// thread runs at real-time priority meanwhile if the system allows that, so that it does not wait for the other threads.
const char *publish_steadily(int fd, const struct request *request, int64_t interval, int64_t most, int64_t patience,
	const int32_t *stop, struct quiet_message *messages, int64_t *sent);

// Has publish_steadily, in another thread, send no more.
void end_quietly(int32_t *stop);
