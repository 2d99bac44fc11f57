#define _GNU_SOURCE // ppoll
#include "threads.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
	SECOND = 1000000000,
	FRAME_HEADER = 4 + 4,
	MESSAGE_HEADER = 8 + 2 + 16,
	ID_SIZE = 16,
	FIN_SIZE = 4 + ID_SIZE + 1,
	READ_BUFFER = 256 * 1024,
	FRAME_RESPONSE = 0,
	FRAME_MESSAGE = 2,
};

static const char OK_FRAME[] = "\0\0\0\6\0\0\0\0OK";
static const char HEARTBEAT[] = "_heartbeat_";

static int64_t now(clockid_t clock) {
	struct timespec t;
	clock_gettime(clock, &t);
	return (int64_t)t.tv_sec * SECOND + t.tv_nsec;
}

static void sleep_until(int64_t moment) {
	const struct timespec t = {moment / SECOND, moment % SECOND};
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR) {
	}
}

// At least a byte; 0 is the end, less an error.
static ssize_t read_some(int fd, void *buffer, size_t size) {
	ssize_t n;
	do {
		n = read(fd, buffer, size);
	} while (n < 0 && errno == EINTR);
	return n;
}

static const char *write_all(int fd, const uint8_t *bytes, size_t size) {
	while (size > 0) {
		ssize_t n = write(fd, bytes, size);
		if (n >= 0) {
			bytes += n;
			size -= n;
		} else if (errno != EINTR) {
			return strerror(errno);
		}
	}
	return NULL;
}

static void put_number(uint8_t *body, int64_t number) { // as putNumber does
	for (int i = 0; i < 8; i++, number >>= 7) {
		body[i] = (uint8_t)number | 0x80;
	}
}

static void put_stamp(uint8_t *body, int64_t stamp) {
	for (int i = 15; i >= 8; i--, stamp >>= 8) {
		body[i] = (uint8_t)stamp;
	}
}

const char *send_at_moments(int fd, const struct request *requests, int64_t count, double rate, int64_t most, int64_t *late,
	int64_t *writes) {
	prctl(PR_SET_TIMERSLACK, 1);
	memset(late, 0, most * sizeof *late); // so that memory is there when it is needed
	const int64_t begin = now(CLOCK_MONOTONIC);
	int64_t sent = 0;
	for (*writes = 0; sent < most; ++*writes) {
		const struct request *r = &requests[*writes % count];
		const int64_t each = r->length / r->messages;
		const int64_t due = begin + (int64_t)(sent / rate * SECOND);
		sleep_until(due);
		const int64_t at = now(CLOCK_MONOTONIC);
		int64_t some = (int64_t)((at - begin) * rate / SECOND) + 1 - sent;
		some = some > most - sent ? most - sent : some;
		some = some > r->messages ? r->messages : some;
		some = some < 1 ? 1 : some;
		const int64_t stamp = now(CLOCK_REALTIME) + r->delay;
		for (int64_t i = 0; i < some; i++) {
			put_number(r->bytes + i * each + r->first_body, sent + i);
			put_stamp(r->bytes + i * each + r->first_body, stamp);
		}
		const char *failure = write_all(fd, r->bytes, some * each);
		if (failure != NULL) {
			return failure;
		}
		late[*writes] = at - due;
		sent += some;
	}
	return NULL;
}

const char *publish_in_turn(int fd, const struct request *requests, int64_t count, int64_t most, int64_t time, int64_t *sent) {
	const int64_t deadline = now(CLOCK_MONOTONIC) + time;
	for (*sent = 0; *sent < most && now(CLOCK_MONOTONIC) <= deadline; ++*sent) {
		const struct request *r = &requests[*sent % count];
		put_number(r->bytes + r->first_body, *sent);
		const char *failure = write_all(fd, r->bytes, r->length);
		if (failure == NULL) {
			failure = expect_oks(fd, 1);
		}
		if (failure != NULL) {
			return failure;
		}
	}
	return NULL;
}

const char *expect_oks(int fd, int64_t count) {
	static const size_t size = sizeof OK_FRAME - 1;
	char buffer[1024 * (sizeof OK_FRAME - 1)];
	size_t have = 0;
	while (count > 0) {
		ssize_t n = read_some(fd, buffer + have, sizeof buffer - have);
		if (n <= 0) {
			return n == 0 ? "the server hung up before its last OK" : strerror(errno);
		}
		have += n;
		size_t used = 0;
		for (; have - used >= size; used += size, count--) {
			if (count == 0 || memcmp(buffer + used, OK_FRAME, size) != 0) {
				return "not OK but something else";
			}
		}
		have -= used;
		memmove(buffer, buffer + used, have);
	}
	return NULL;
}

static uint32_t get_32(const uint8_t *bytes) {
	return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

const char *finish_all(int fd, struct arrival *arrivals, int64_t count, int64_t *came, int64_t *last) {
	static uint8_t buffer[READ_BUFFER], answers[READ_BUFFER]; // a command is shorter than what it answers
	memset(arrivals, 0, count * sizeof *arrivals);              // so that memory is there when it is needed
	size_t have = 0;
	*came = 0;
	while (*came < count) {
		ssize_t n = read_some(fd, buffer + have, sizeof buffer - have);
		if (n <= 0) {
			return n == 0 ? NULL : strerror(errno);
		}
		const int64_t at = now(CLOCK_REALTIME);
		have += n;
		size_t used = 0, out = 0;
		while (have - used >= FRAME_HEADER) {
			const uint8_t *frame = buffer + used;
			const size_t size = 4 + (size_t)get_32(frame);
			if (size > have - used) {
				break;
			}
			const uint32_t kind = get_32(frame + 4);
			const uint8_t *data = frame + FRAME_HEADER;
			if (kind == FRAME_MESSAGE && size >= FRAME_HEADER + MESSAGE_HEADER + HEAD_SIZE) {
				if (data[8] != 0 || data[9] != 1) {
					return "a message that is not at its first attempt";
				}
				if (*came == count) {
					return "more messages than were sent";
				}
				arrivals[*came].came = at;
				memcpy(arrivals[(*came)++].head, data + MESSAGE_HEADER, HEAD_SIZE);
				memcpy(answers + out, "FIN ", 4);
				memcpy(answers + out + 4, data + 10, ID_SIZE);
				answers[out + FIN_SIZE - 1] = '\n';
				out += FIN_SIZE;
			} else if (kind == FRAME_RESPONSE && size == FRAME_HEADER + sizeof HEARTBEAT - 1 &&
				memcmp(data, HEARTBEAT, sizeof HEARTBEAT - 1) == 0) {
				memcpy(answers + out, "NOP\n", 4);
				out += 4;
			} else {
				return "not a message but another frame";
			}
			used += size;
		}
		have -= used;
		memmove(buffer, buffer + used, have);
		if (have == sizeof buffer) {
			return "a frame that is longer than what is read at once";
		}
		if (out > 0) {
			const char *failure = write_all(fd, answers, out);
			if (failure != NULL) {
				return failure;
			}
			*last = now(CLOCK_REALTIME);
		}
	}
	return NULL;
}

// What publish_steadily knows while it runs.
struct quiet {
	int fd;
	const struct request *request;
	struct quiet_message *messages;
	int64_t sent, answered;
	int64_t written; // bytes of the request that is being written; -1: none is
	char answers[1024 * (sizeof OK_FRAME - 1)];
	size_t have;
};

static const char *write_quietly(struct quiet *q) {
	while (q->written < q->request->length) {
		ssize_t n = send(q->fd, q->request->bytes + q->written, q->request->length - q->written, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (n < 0) {
			return errno == EAGAIN || errno == EINTR ? NULL : strerror(errno);
		}
		q->written += n;
	}
	q->written = -1;
	q->sent++;
	return NULL;
}

static const char *read_quietly(struct quiet *q) {
	static const size_t size = sizeof OK_FRAME - 1;
	ssize_t n = recv(q->fd, q->answers + q->have, sizeof q->answers - q->have, MSG_DONTWAIT);
	if (n <= 0) {
		return n < 0 && (errno == EAGAIN || errno == EINTR) ? NULL : n == 0 ? "the server hung up" : strerror(errno);
	}
	const int64_t at = now(CLOCK_MONOTONIC);
	q->have += n;
	size_t used = 0;
	for (; q->have - used >= size; used += size, q->answered++) {
		if (q->answered == q->sent || memcmp(q->answers + used, OK_FRAME, size) != 0) {
			return "not OK but something else";
		}
		q->messages[q->answered].waited = at - q->messages[q->answered].written;
	}
	q->have -= used;
	memmove(q->answers, q->answers + used, q->have);
	return NULL;
}

// Until something can be read, or written if that is wanted, or the time is over.
static void await_quietly(struct quiet *q, int64_t time) {
	struct pollfd either = {q->fd, q->written >= 0 ? POLLIN | POLLOUT : POLLIN, 0};
	time = time < 0 ? 0 : time;
	const struct timespec t = {time / SECOND, time % SECOND};
	ppoll(&either, 1, &t, NULL);
}

static const char *publish_until_stopped(struct quiet *q, int64_t interval, int64_t most, int64_t patience, const int32_t *stop) {
	static const int64_t LOOK_AGAIN = SECOND / 100;
	const int64_t begin = now(CLOCK_MONOTONIC);
	while (1) {
		const int stopping = __atomic_load_n(stop, __ATOMIC_ACQUIRE) != 0 || q->sent == most;
		const int64_t at = now(CLOCK_MONOTONIC), due = begin + q->sent * interval;
		if (q->written < 0 && !stopping && at >= due) {
			q->messages[q->sent].written = at;
			q->messages[q->sent].late = at - due;
			q->written = 0;
		}
		const char *failure = q->written >= 0 ? write_quietly(q) : NULL;
		if (failure == NULL) {
			failure = read_quietly(q);
		}
		if (failure != NULL) {
			return failure;
		}
		if (stopping && q->written < 0 && q->answered == q->sent) {
			return NULL;
		}
		if (q->answered < q->sent && at - q->messages[q->answered].written > patience) {
			return "the quiet client's PUB has no OK yet: patience is over";
		}
		const int64_t next = begin + q->sent * interval - now(CLOCK_MONOTONIC);
		await_quietly(q, stopping || q->written >= 0 ? LOOK_AGAIN : next);
	}
}

const char *publish_steadily(int fd, const struct request *request, int64_t interval, int64_t most, int64_t patience,
	const int32_t *stop, struct quiet_message *messages, int64_t *sent) {
	struct quiet q = {.fd = fd, .request = request, .messages = messages, .written = -1};
	struct sched_param before, first = {.sched_priority = 1};
	const int policy = sched_getscheduler(0);
	const int raised = sched_getparam(0, &before) == 0 && sched_setscheduler(0, SCHED_FIFO, &first) == 0;
	prctl(PR_SET_TIMERSLACK, 1);
	memset(messages, 0, most * sizeof *messages); // so that memory is there when it is needed
	const char *failure = publish_until_stopped(&q, interval, most, patience, stop);
	if (raised) {
		sched_setscheduler(0, policy, &before);
	}
	*sent = q.answered;
	return failure;
}

void end_quietly(int32_t *stop) { __atomic_store_n(stop, 1, __ATOMIC_RELEASE); }
