/**
 * A pull parser for `multipart/form-data` (RFC 7578, RFC 2046): part by part, each body a stream that is read only as fast
 * as it is asked for.
 *
 * Why not busboy: it skips parts with malformed headers in silence, decodes no `%22`, and pushes, so that a slow storage,
 * a limit or a second file had to be fought with pauses. Here a body that breaks off anywhere is one error.
 */
import { SkrepkaError } from '../errors.ts';

/** Headers of one part, and what may stand before the first and after the last part. */
const headBytesMax = 8 * 1024;

export interface Part {
  /** Lower-case names; one byte a character, as in HTTP. */
  readonly headers: ReadonlyMap<string, string>;
  /** To be read to its end before the next part is asked for. A chunk is valid until the next one is asked for. */
  readonly body: AsyncGenerator<Buffer>;
}

/**
 * The parts of a body, whose chunks need be valid only until the next one is asked for. It is read to its own end after the last
 * part. Throws `malformed_multipart`, and what the source throws.
 */
export async function* readParts(source: AsyncGenerator<Buffer>, boundary: string): AsyncGenerator<Part> {
  const window = createWindow(source);
  const delimiter = Buffer.from(`\r\n--${boundary}`, 'latin1');
  // The first delimiter may stand at the very beginning; as if a line had ended before it.
  window.prepend(Buffer.from('\r\n'));
  await drain(upTo(window, delimiter), headBytesMax);
  while (!(await isLast(window))) {
    const headers = parseHeaders(await readHead(window));
    const body = upTo(window, delimiter);
    yield { headers, body };
    // Left unread by the consumer: pass it by, or the next part would begin inside this one.
    await drain(body, Number.POSITIVE_INFINITY);
  }
  await drain(window.rest(), headBytesMax);
}

/** The boundary in a `Content-Type`; null when there is none that RFC 2046 allows. */
export function boundaryOf(contentType: string): string | null {
  const match = /;\s*boundary=(?:"([^"]+)"|([^\s;"]+))/i.exec(contentType);
  const boundary = match?.[1] ?? match?.[2] ?? '';
  return /^[\w'()+,./:=? -]{0,69}[\w'()+,./:=?-]$/.test(boundary) ? boundary : null;
}

interface Window {
  /** What was read and not taken yet. */
  bytes(): Buffer;
  prepend(more: Buffer): void;
  take(count: number): Buffer;
  /** Reads on. Throws `malformed_multipart` at the end of the source: inside a multipart body it never comes in time. */
  more(): Promise<void>;
  rest(): AsyncGenerator<Buffer>;
}

function createWindow(source: AsyncGenerator<Buffer>): Window {
  let held: Buffer = Buffer.alloc(0);
  return {
    bytes: () => held,
    prepend(more) {
      held = Buffer.concat([more, held]);
    },
    take(count) {
      const taken = held.subarray(0, count);
      held = held.subarray(count);
      return taken;
    },
    async more() {
      // A copy: what was read is valid only until more is asked for. Nearly always of nothing, see `upTo`.
      const kept = held.length === 0 ? null : Buffer.from(held);
      const { done, value } = await source.next();
      if (done) throw malformed('the body ends inside a part');
      held = kept === null ? value : Buffer.concat([kept, value]);
    },
    async *rest() {
      if (held.length > 0) yield held;
      held = Buffer.alloc(0);
      yield* source;
    },
  };
}

/** Everything before the next delimiter, which is taken as well. */
async function* upTo(window: Window, delimiter: Buffer): AsyncGenerator<Buffer> {
  for (;;) {
    const held = window.bytes();
    const at = held.indexOf(delimiter);
    if (at >= 0) {
      const last = window.take(at);
      window.take(delimiter.length);
      if (last.length > 0) yield last;
      return;
    }
    const sure = held.length - beginningAtEnd(held, delimiter);
    if (sure > 0) yield window.take(sure);
    await window.more();
  }
}

/**
 * How many of the last bytes may be the beginning of a delimiter whose end has not come yet. Only its first byte is a carriage
 * return, so only the last one of these bytes can begin it. To keep back as many as a delimiter has meant to copy every chunk.
 */
function beginningAtEnd(held: Buffer, delimiter: Buffer): number {
  const end = held.subarray(Math.max(0, held.length - (delimiter.length - 1)));
  const at = end.lastIndexOf(0x0d);
  if (at < 0) return 0;
  const beginning = end.subarray(at);
  return beginning.equals(delimiter.subarray(0, beginning.length)) ? beginning.length : 0;
}

/** After a delimiter: `--` ends the body, a line break begins a part. RFC 2046 allows blanks before the line break. */
async function isLast(window: Window): Promise<boolean> {
  for (let passed = 0; ; ) {
    const held = window.bytes();
    if (held.length < 2) {
      await window.more();
    } else if (passed === 0 && held[0] === 0x2d && held[1] === 0x2d) {
      window.take(2);
      return true;
    } else if (held[0] === 0x0d && held[1] === 0x0a) {
      return false;
    } else {
      const [byte] = window.take(1);
      passed += 1;
      if ((byte !== 0x20 && byte !== 0x09) || passed > 256)
        throw malformed('a delimiter is followed by something else');
    }
  }
}

/** The lines between the delimiter's line break and the empty line. */
async function readHead(window: Window): Promise<string> {
  for (;;) {
    const end = window.bytes().indexOf('\r\n\r\n');
    if (end >= 0 && end <= headBytesMax) {
      const head = window.take(end + 4).toString('latin1');
      return head.slice(2, -4);
    }
    if (window.bytes().length > headBytesMax) throw malformed('the headers of a part are too large');
    await window.more();
  }
}

function parseHeaders(head: string): Map<string, string> {
  const headers = new Map<string, string>();
  for (const line of head === '' ? [] : head.split('\r\n')) {
    const match = /^([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*(.*?)[ \t]*$/s.exec(line);
    const [, name = '', value = ''] = match ?? [];
    // A bare line break or NUL would be read differently by the next program.
    if (!match || /[\r\n\0]/.test(value)) throw malformed('a header of a part is not well-formed');
    if (headers.has(name.toLowerCase())) throw malformed('a header of a part is given twice');
    headers.set(name.toLowerCase(), value);
  }
  return headers;
}

async function drain(body: AsyncGenerator<Buffer>, bytesMax: number): Promise<void> {
  let bytes = 0;
  for await (const chunk of body) {
    bytes += chunk.length;
    if (bytes > bytesMax) throw malformed('there are too many bytes outside of the parts');
  }
}

function malformed(log: string): SkrepkaError {
  return new SkrepkaError('malformed_multipart', { log: `malformed multipart: ${log}` });
}
