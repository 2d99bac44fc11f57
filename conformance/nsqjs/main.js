// nsqjs, the official JavaScript client, as a program: the same options and the same report as pynsq_client.py.

'use strict'

const fs = require('fs')
const {parseArgs} = require('util')
const {Reader, Writer} = require('nsqjs')

const ANSWER_MS = 10000
const NEWLINE = Buffer.from('\n')

class Failed extends Error {}

const text = (value) => ({type: 'string', default: String(value)})

const OPTIONS = {
  topic: text(''),
  tcp: text(''),
  'tls-root-ca-file': text(''),
  'tls-cert': text(''),
  compression: text(''),
  'auth-secret': text(''),
  file: text(''),
  command: text('pub'),
  batch: text(100),
  'defer-ms': text(0),
  window: text(200),
  'lookupd-http': text(''),
  'poll-seconds': text(1),
  channel: text(''),
  out: text(''),
  count: text(0),
  distinct: text(0),
  readers: text(1),
  'max-in-flight': text(200),
  'msg-timeout-ms': text(0),
  'first-attempt': text('finish'),
  'requeue-ms': text(0),
  'max-backoff-seconds': text(128),
  'hold-ms': text(0),
  'touch-ms': text(200),
  timeout: text(40),
}

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

// A file as the bodies that stand for it, one for each line, with the number of the line.
function numberedLines(file) {
  const content = fs.readFileSync(file)
  const bodies = []
  for (let start = 0; start < content.length; ) {
    const end = content.indexOf(NEWLINE, start)
    const line = content.subarray(start, end < 0 ? content.length : end)
    bodies.push(Buffer.concat([Buffer.from(`${bodies.length + 1}\t`), line]))
    start += line.length + 1
  }
  return bodies
}

function negotiation(options) {
  const asked = {}
  if (options.compression) asked[options.compression] = true
  if (options['auth-secret']) asked.authSecret = options['auth-secret']
  if (options['tls-root-ca-file']) {
    Object.assign(asked, {tls: true, ca: fs.readFileSync(options['tls-root-ca-file'])})
    if (options['tls-cert']) {
      asked.cert = fs.readFileSync(options['tls-cert'])
      asked.key = asked.cert
    }
  }
  return asked
}

function connected(writer) {
  return new Promise((resolve, reject) => {
    const refused = (error) => reject(new Failed(`nsqd refused to publish: ${error || 'it closed the connection'}`))
    writer.on(Writer.READY, resolve)
    writer.on(Writer.ERROR, refused)
    writer.on(Writer.CLOSED, refused)
    setTimeout(() => reject(new Failed('no connection to nsqd')), ANSWER_MS).unref()
    writer.connect()
  })
}

// One call to nsqjs for each command to send.
function commands(writer, bodies, options) {
  const {topic, command} = options
  if (command === 'mpub') {
    const batch = Number(options.batch)
    const starts = Array.from({length: Math.ceil(bodies.length / batch)}, (_, number) => number * batch)
    return starts.map((start) => (done) => writer.publish(topic, bodies.slice(start, start + batch), done))
  }
  if (command === 'dpub') {
    const delay = Number(options['defer-ms'])
    return bodies.map((body) => (done) => writer.deferPublish(topic, [body], delay, done))
  }
  return bodies.map((body) => (done) => writer.publish(topic, body, done))
}

async function publish(options) {
  const bodies = numberedLines(options.file)
  const [host, port] = options.tcp.split(':')
  const writer = new Writer(host, Number(port), negotiation(options))
  await connected(writer)
  const started = Date.now()
  const left = commands(writer, bodies, options)[Symbol.iterator]()
  const sendOneAfterTheOther = async () => {
    for (const send of left) {
      await new Promise((resolve, reject) => {
        send((error) => (error ? reject(new Failed(`nsqd refused to publish: ${error}`)) : resolve()))
      })
    }
  }
  await Promise.all(Array.from({length: Number(options.window)}, sendOneAfterTheOther))
  return {published: bodies.length, seconds: (Date.now() - started) / 1000}
}

async function consume(options) {
  const count = Number(options.count)
  const bodies = []
  const different = new Set()
  const attempts = {}
  const byReader = Array(Number(options.readers)).fill(0)
  const firstDeliveries = new Map()
  let [requeued, youngestMs, firstAt, lastAt] = [0, Infinity, 0, 0]
  let complete
  const completed = new Promise((resolve) => (complete = resolve))

  const finish = (message, number) => {
    message.finish()
    // A late answer to a delivery that has timed out: nsqd must refuse it and go on.
    const late = firstDeliveries.get(message.id)
    if (late) late.finish()
    lastAt = Date.now()
    firstAt = firstAt || lastAt
    bodies.push(message.body)
    different.add(message.body.toString('latin1'))
    attempts[message.attempts] = (attempts[message.attempts] || 0) + 1
    byReader[number] += 1
    if ((Number(options.distinct) ? different.size : bodies.length) === count) complete(true)
  }
  const hold = async (message, number) => {
    const end = Date.now() + Number(options['hold-ms'])
    for (let left = end - Date.now(); left > 0; left = end - Date.now()) {
      await sleep(Math.min(left, Number(options['touch-ms'])))
      message.touch()
    }
    finish(message, number)
  }
  const handle = (message, number) => {
    // Date.now() has whole milliseconds, the past one: a message that came in time would look early.
    const now = performance.timeOrigin + performance.now()
    youngestMs = Math.min(youngestMs, now - Number(message.timestamp) / 1e6)
    if (message.attempts === 1 && ['requeue', 'backoff'].includes(options['first-attempt'])) {
      requeued += 1
      message.requeue(Number(options['requeue-ms']), options['first-attempt'] === 'backoff')
    } else if (message.attempts === 1 && options['first-attempt'] === 'late') {
      firstDeliveries.set(message.id, message)
    } else if (Number(options['hold-ms'])) {
      hold(message, number)
    } else {
      finish(message, number)
    }
  }
  const readers = byReader.map((_, number) => {
    const reader = new Reader(options.topic, options.channel, {
      nsqdTCPAddresses: options.tcp ? [options.tcp] : [],
      lookupdHTTPAddresses: options['lookupd-http'] ? options['lookupd-http'].split(',') : [],
      lookupdPollInterval: Number(options['poll-seconds']),
      lookupdPollJitter: 0.01,
      maxInFlight: Number(options['max-in-flight']),
      maxBackoffDuration: Number(options['max-backoff-seconds']),
      messageTimeout: Number(options['msg-timeout-ms']) || null,
      ...negotiation(options),
    })
    reader.on(Reader.MESSAGE, (message) => handle(message, number))
    reader.on(Reader.ERROR, (error) => console.error(`nsqjs: ${error}`))
    reader.connect()
    return reader
  })
  const ended = setTimeout(() => complete(false), Number(options.timeout) * 1000)
  const all = await completed
  clearTimeout(ended)
  fs.writeFileSync(options.out, Buffer.concat(bodies.flatMap((body) => [body, NEWLINE])))
  if (!all) throw new Failed(`only ${bodies.length} of ${count} messages within ${options.timeout} s`)
  await saidAll(readers)
  await Promise.all(readers.map(closed))
  return {
    finished: bodies.length,
    requeued,
    attempts,
    by_reader: byReader,
    youngest_ms: youngestMs,
    seconds: (lastAt - firstAt) / 1000,
  }
}

// nsqjs does not say when the last FIN has left, compresses in the background, and drops what is unsent when it closes.
async function saidAll(readers) {
  const connections = readers.flatMap((reader) => reader.readerRdy.connections)
  const sockets = connections.map((each) => each.conn.conn).filter(Boolean)
  let before = -1
  for (let written = 0; written !== before || sockets.some((socket) => socket.writableLength); ) {
    await sleep(100)
    before = written
    written = sockets.reduce((sum, socket) => sum + socket.bytesWritten, 0)
  }
}

function closed(reader) {
  return new Promise((resolve) => {
    reader.on(Reader.NSQD_CLOSED, resolve)
    setTimeout(resolve, 1000)
    reader.close()
  })
}

async function main() {
  const [program, ...flags] = process.argv.slice(2)
  const options = parseArgs({args: flags, options: OPTIONS}).values
  const report = await {publish, consume}[program](options)
  process.stdout.write(JSON.stringify(report) + '\n', () => process.exit(0))
}

main().catch((error) => {
  process.stderr.write(`nsqjs: ${error instanceof Failed ? error.message : error.stack}\n`, () => process.exit(1))
})
