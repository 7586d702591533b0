/** The parser of multipart bodies, without a server: every cut into chunks, and everything that is not well-formed. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { SkrepkaError } from '../../src/errors.ts';
import { boundaryOf, readParts } from '../../src/http/multipart.ts';

const boundary = 'x-boundary';

/** A chunk is valid until the next one is asked for, as those of a request are. */
async function* cut(body: Buffer, sizeMax: number): AsyncGenerator<Buffer> {
  for (let at = 0; at < body.length; at += sizeMax) {
    const chunk = Buffer.from(body.subarray(at, at + sizeMax));
    yield chunk;
    chunk.fill('?');
  }
}

async function parse(body: Buffer, sizeMax = 7): Promise<{ headers: Record<string, string>; bytes: Buffer }[]> {
  const parts = [];
  for await (const { headers, body: content } of readParts(cut(body, sizeMax), boundary)) {
    const chunks: Buffer[] = [];
    for await (const chunk of content) chunks.push(Buffer.from(chunk));
    parts.push({ headers: Object.fromEntries(headers), bytes: Buffer.concat(chunks) });
  }
  return parts;
}

const lines = (...all: string[]) => Buffer.from(all.join('\r\n'), 'latin1');
const plain = lines(
  '--x-boundary',
  'A: 1',
  '',
  'first',
  '--x-boundary',
  'b:2',
  'C:   three  ',
  '',
  '',
  '--x-boundary--',
  '',
);

describe('a multipart body', () => {
  it('gives the same parts however it is cut', async () => {
    for (let sizeMax = 1; sizeMax <= plain.length; sizeMax += 1) {
      assert.deepEqual(await parse(plain, sizeMax), [
        { headers: { a: '1' }, bytes: Buffer.from('first') },
        { headers: { b: '2', c: 'three' }, bytes: Buffer.alloc(0) },
      ]);
    }
  });

  it('gives back contents that are full of almost-delimiters, however they are cut', async () => {
    const content = Buffer.from('\r\n--x-boundar\r\n\r\n--\r\n--x\r\r\n--x-bounda\r\n\r', 'latin1');
    const body = Buffer.concat([lines('--x-boundary', 'A: 1', '', ''), content, lines('', '--x-boundary--')]);
    for (let sizeMax = 1; sizeMax <= 40; sizeMax += 1) {
      const [part] = await parse(body, sizeMax);
      assert.deepEqual(part?.bytes, content, `in chunks of ${sizeMax}`);
    }
  });

  it('is passed on in its own chunks, not in copies of them, except where a delimiter may have begun', async () => {
    const content = Buffer.alloc(5000, 'content \r\n without delimiters ');
    const body = Buffer.concat([lines('--x-boundary', 'A: 1', '', ''), content, lines('', '--x-boundary--')]);
    const chunks = new Set<ArrayBufferLike>();
    async function* source() {
      for await (const chunk of cut(body, 1000)) {
        const own = new Uint8Array(chunk);
        chunks.add(own.buffer);
        yield Buffer.from(own.buffer);
      }
    }
    let passed = 0;
    for await (const part of readParts(source(), boundary)) {
      for await (const chunk of part.body) if (chunks.has(chunk.buffer)) passed += chunk.length;
    }
    assert.ok(passed > 3000, `${passed} of ${content.length} bytes were not copied`);
  });

  it('may have a preamble, an epilogue, blanks behind delimiters and no last line break', async () => {
    const body = lines('hello', '--x-boundary \t', 'A: 1', '', 'z', '--x-boundary--', 'good', 'bye');
    assert.deepEqual(await parse(body), [{ headers: { a: '1' }, bytes: Buffer.from('z') }]);
  });

  it('may have parts without headers, and none at all', async () => {
    assert.deepEqual(await parse(lines('--x-boundary', '', 'z', '--x-boundary--')), [
      { headers: {}, bytes: Buffer.from('z') },
    ]);
    assert.deepEqual(await parse(lines('--x-boundary--', '')), []);
  });

  it('passes over what its consumer leaves unread', async () => {
    const seen = [];
    for await (const part of readParts(cut(plain, 3), boundary)) seen.push([...part.headers.keys()]);
    assert.deepEqual(seen, [['a'], ['b', 'c']]);
  });

  it('is never read further than was asked for', async () => {
    let pulled = 0;
    async function* source() {
      for await (const chunk of cut(plain, 1)) {
        pulled += 1;
        yield chunk;
      }
    }
    const parts = readParts(source(), boundary);
    assert.equal(pulled, 0);
    await parts.next();
    assert.equal(pulled, plain.indexOf('first'));
  });
});

describe('a body that is not well-formed', () => {
  const cases: Readonly<Record<string, Buffer>> = {
    'is empty': Buffer.alloc(0),
    'has no delimiter': lines('hello', 'world'),
    'has eight kilobytes before its first delimiter': Buffer.concat([Buffer.alloc(9000, 'a'), plain]),
    'has eight kilobytes behind its last': Buffer.concat([plain, Buffer.alloc(9000, 'a')]),
    'has a delimiter that goes on': lines('--x-boundaryZ', 'A: 1', '', 'z', '--x-boundary--'),
    'has endless blanks behind a delimiter': lines(`--x-boundary${' '.repeat(300)}`, 'A: 1', '', 'z', '--x-boundary--'),
    'has a header without a colon': lines('--x-boundary', 'A', '', 'z', '--x-boundary--'),
    'has a header with a blank in its name': lines('--x-boundary', 'A : 1', '', 'z', '--x-boundary--'),
    'has a folded header': lines('--x-boundary', 'A: 1', ' 2', '', 'z', '--x-boundary--'),
    'has a header with a bare line feed': lines('--x-boundary', 'A: 1\nB: 2', '', 'z', '--x-boundary--'),
    'has a header with NUL': lines('--x-boundary', 'A: 1\0', '', 'z', '--x-boundary--'),
    'has a header twice': lines('--x-boundary', 'A: 1', 'a: 2', '', 'z', '--x-boundary--'),
    'has headers of nine kilobytes': lines('--x-boundary', `A: ${'a'.repeat(9000)}`, '', 'z', '--x-boundary--'),
    'has headers that never end': lines('--x-boundary', 'A: 1', 'B: 2'),
  };
  for (const [what, body] of Object.entries(cases)) {
    it(`is refused when it ${what}`, async () => {
      for (const sizeMax of [1, 64, 100_000]) await assert.rejects(parse(body, sizeMax), isMalformed);
    });
  }

  it('is refused wherever it breaks off', async () => {
    const end = plain.lastIndexOf('--');
    for (let length = 0; length < end + 2; length += 1) {
      await assert.rejects(parse(plain.subarray(0, length)), isMalformed, `at byte ${length}`);
    }
    await parse(plain.subarray(0, end + 2));
  });
});

function isMalformed(error: unknown): boolean {
  return error instanceof SkrepkaError && error.code === 'malformed_multipart';
}

describe('the boundary', () => {
  const cases: readonly [string, string | null][] = [
    ['multipart/form-data; boundary=abc', 'abc'],
    ['multipart/form-data; charset=utf-8; BOUNDARY="a b:c"', 'a b:c'],
    ['multipart/form-data;boundary=----WebKitFormBoundaryAbC123', '----WebKitFormBoundaryAbC123'],
    ['multipart/form-data', null],
    ['multipart/form-data; boundary=', null],
    ['multipart/form-data; boundary=""', null],
    ['multipart/form-data; boundary="ends in a blank "', null],
    [`multipart/form-data; boundary=${'a'.repeat(70)}`, 'a'.repeat(70)],
    [`multipart/form-data; boundary=${'a'.repeat(71)}`, null],
    ['multipart/form-data; boundary="a\\"b"', null],
  ];
  for (const [contentType, expected] of cases) {
    it(`of ${contentType} is ${expected ?? 'missing'}`, () => assert.equal(boundaryOf(contentType), expected));
  }
});
