/** `POST /v1/attachments`: a block per status. Broken streams are in `uploads-broken.test.ts`. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { BlobError } from '../../src/pipeline/ports.ts';
import { StoreError } from '../../src/pipeline/store.ts';
import { assertProblem } from '../support/api.ts';
import { hardNames } from '../support/names.ts';
import { until } from '../support/until.ts';
import { dial, form, nothing, png, sha256, startUploads, untilNothing, uploadHead } from '../support/uploads.ts';

const encoded = (name: string) =>
  encodeURIComponent(name).replace(/['()*]/g, (c) => `%${c.charCodeAt(0).toString(16)}`);
const digestOf = (bytes: Uint8Array) => `sha-256=:${Buffer.from(sha256(bytes), 'hex').toString('base64')}:`;

describe('202', () => {
  it('answers the attachment, queued, and says where it is; bytes, row and job are there', async (t) => {
    const { send, ada, blobs, remains, call } = await startUploads(t);
    const bytes = png('cat', 1000);
    const answer = await send(bytes, { 'content-type': 'image/png' }, '?filename=cat.png');
    assert.equal(answer.status, 202);
    assert.equal(answer.headers.get('location'), `/v1/attachments/${answer.body.id}`);
    const { state, kind, file_name, content_type, size, sha256: digest, alt, variants } = answer.body;
    assert.deepEqual(
      { state, kind, file_name, content_type, size, digest, alt, variants },
      {
        ...{ state: 'queued', kind: 'image', file_name: 'cat.png', content_type: 'image/png', size: bytes.length },
        ...{ digest: sha256(bytes), alt: null, variants: [] },
      },
    );
    assert.deepEqual(await remains(), { ...nothing, attachments: 1, jobs: 1, files: 1 });
    assert.equal((await blobs.port.head(`staging/${answer.body.id}`))?.size, bytes.length);
    const read = await call(`GET ${answer.headers.get('location')}`, { token: ada.token });
    assert.deepEqual(read.body, answer.body);
  });

  it('lets content decide the type, never the name nor the declared type', async (t) => {
    const { send } = await startUploads(t);
    const lying = await send(png(), { 'content-type': 'image/jpeg' }, '?filename=a.heic');
    assert.deepEqual(
      [lying.body.content_type, lying.body.kind, lying.body.file_name],
      ['image/png', 'image', 'a.heic'],
    );
    const text = await send(Buffer.from('<svg/>'), { 'content-type': 'image/svg+xml' }, '?filename=a.png');
    assert.deepEqual([text.status, text.body.kind], [202, 'file']);
    const untyped = await send(png());
    assert.deepEqual([untyped.body.content_type, untyped.body.file_name], ['image/png', 'upload']);
  });

  it('keeps every name exactly, from filename*, from filename, from the query, and never in a key', async (t) => {
    const { send, blobs } = await startUploads(t);
    for (const name of hardNames) {
      const given = [
        await send(png(), { 'content-disposition': `attachment; filename*=UTF-8''${encoded(name)}` }),
        await send(png(), {}, `?filename=${encodeURIComponent(name)}`),
        await send(form({ file: [png(), name, 'image/png'] })),
      ];
      assert.deepEqual(
        given.map(({ body }) => body.file_name),
        [name, name, name],
      );
    }
    const { objects } = await blobs.port.list('');
    assert.equal(objects.length, hardNames.length * 3);
    for (const { key } of objects) assert.match(key, /^staging\/[0-9a-f-]{36}$/);
  });

  it('takes a UTF-8 name in filename of a raw upload', async (t) => {
    const { url, ada } = await startUploads(t);
    const line = await dial(t, url);
    const disposition = Buffer.from('attachment; filename="日本-😀.png"').toString('latin1');
    const head = uploadHead(ada.token, { 'content-length': png().length, 'content-disposition': disposition });
    await line.write(Buffer.concat([Buffer.from(head, 'latin1'), png()]));
    await line.until('"state":"queued"');
    assert.ok(Buffer.from(line.received(), 'latin1').toString().includes('"file_name":"日本-😀.png"'));
  });

  it('takes alt and sha256 of a form before and after the file', async (t) => {
    const { send } = await startUploads(t);
    const file: [Buffer, string, string] = [png('x'), 'x.png', 'image/png'];
    const fields = { alt: 'a cat, 日本', sha256: sha256(png('x')).toUpperCase() };
    for (const body of [
      form({ ...fields, file }),
      form({ file, ...fields }),
      form({ alt: fields.alt, file, sha256: fields.sha256 }),
    ]) {
      const answer = await send(body);
      assert.deepEqual([answer.status, answer.body.alt], [202, fields.alt]);
    }
    const empty = await send(form({ alt: '', file }));
    assert.equal(empty.body.alt, null);
  });

  it('gives two parallel uploads of one name their own bytes', async (t) => {
    const { send, blobs } = await startUploads(t);
    const bodies = Array.from({ length: 8 }, (_, at) => png(`picture ${at}`, 20_000));
    const answers = await Promise.all(bodies.map((body) => send(body, {}, '?filename=same.png')));
    for (const [at, { body }] of answers.entries()) {
      assert.equal(body.sha256, sha256(bodies[at] ?? ''));
      const { body: stored } = await blobs.port.open(`staging/${body.id}`);
      assert.equal(sha256(Buffer.concat(await stored.toArray())), body.sha256);
    }
  });

  it('verifies a digest that is right, and ignores other algorithms', async (t) => {
    const { send } = await startUploads(t);
    assert.equal((await send(png(), { 'repr-digest': digestOf(png()) })).status, 202);
    assert.equal((await send(png(), { 'repr-digest': 'md5=:YQ==:' })).status, 202);
  });

  it('is the stored answer again for the same key and content, without a second attachment', async (t) => {
    const { send, remains } = await startUploads(t);
    const headers = { 'idempotency-key': 'one', 'content-type': 'image/png' };
    const first = await send(png(), headers, '?filename=a.png');
    const second = await send(png(), headers, '?filename=a.png');
    assert.equal(second.status, 202);
    assert.deepEqual(second.body, first.body);
    assert.equal(second.headers.get('location'), first.headers.get('location'));
    assert.deepEqual(
      [first, second].map((each) => each.headers.get('idempotency-replayed')),
      [null, 'true'],
    );
    assert.deepEqual(await remains(), { attachments: 1, jobs: 1, keys: 1, files: 1 });
  });

  it('takes a form with a key twice as the same request', async (t) => {
    const { send, remains } = await startUploads(t);
    const body = () => form({ alt: 'cat', file: [png(), 'a.png', 'image/png'] });
    const answers = [await send(body(), { 'idempotency-key': 'f' }), await send(body(), { 'idempotency-key': 'f' })];
    assert.deepEqual(answers[1]?.body, answers[0]?.body);
    assert.equal((await remains()).attachments, 1);
  });
});

describe('400', () => {
  it('answers a body without bytes, however it says so, and keeps nothing', async (t) => {
    const { send, call, ada, remains, url } = await startUploads(t);
    assertProblem(await send(Buffer.alloc(0), { 'content-type': 'image/png' }), 400, 'empty_file');
    assertProblem(await call('POST /v1/attachments', { token: ada.token }), 400, 'empty_file');
    assertProblem(await send(form({ file: [Buffer.alloc(0), 'a.png', 'image/png'] })), 400, 'empty_file');
    const line = await dial(t, url);
    await line.write(`${uploadHead(ada.token, { 'transfer-encoding': 'chunked' })}0\r\n\r\n`);
    await line.until('"code":"empty_file"');
    assert.deepEqual(await remains(), nothing);
  });

  it('answers forms without a file, with two files, and with parts that are none', async (t) => {
    const { send, remains } = await startUploads(t);
    const file: [Buffer, string, string] = [png(), 'a.png', 'image/png'];
    assertProblem(await send(form({ alt: 'a' })), 400, 'file_missing');
    assertProblem(await send(form({ file }, { file })), 400, 'too_many_files');
    const raw = async (text: string) => send(text, { 'content-type': 'multipart/form-data; boundary=b' });
    assertProblem(await raw('--b--\r\n'), 400, 'file_missing');
    assertProblem(await raw(''), 400, 'malformed_multipart');
    assertProblem(await raw('--b\r\n\r\nx\r\n--b--'), 400, 'malformed_multipart');
    const head = 'content-disposition: form-data; name=file; filename=a\r\n';
    assertProblem(await raw(`--b\r\n${head}\r\nbroken off`), 400, 'malformed_multipart');
    assertProblem(await raw(`--b\r\n${head}\r\nx\r\n--b\r\n${head}`), 400, 'malformed_multipart');
    assertProblem(
      await raw(`--b\r\n${head}content-transfer-encoding: base64\r\n\r\nx\r\n--b--`),
      400,
      'malformed_multipart',
    );
    assertProblem(await send('x', { 'content-type': 'multipart/form-data' }), 400, 'malformed_multipart');
    assert.deepEqual(await remains(), nothing);
  });

  it('answers fields that are unknown, doubled, too long or of another form, naming each', async (t) => {
    const { send, remains } = await startUploads(t);
    const file: [Buffer, string, string] = [png(), 'a.png', 'image/png'];
    for (const body of [form({ title: 'x', file }), form({ file, title: 'x' }), form({ title: file })]) {
      assertProblem(await send(body), 400, 'validation', 'title');
    }
    assertProblem(await send(form({ alt: 'a', file }, { alt: 'b' })), 400, 'validation', 'alt');
    assertProblem(await send(form({ alt: 'é'.repeat(1001), file })), 400, 'validation', 'alt');
    assertProblem(await send(form({ alt: 'x'.repeat(100_000), file })), 400, 'validation', 'alt');
    assertProblem(await send(form({ file, alt: 'a\0b' })), 400, 'validation', 'alt');
    assertProblem(await send(form({ file, sha256: 'abc' })), 400, 'validation', 'sha256');
    assertProblem(await send(png(), { 'repr-digest': 'sha-256=abc' }), 400, 'validation', 'repr-digest');
    assertProblem(await send(png(), { 'idempotency-key': 'k'.repeat(256) }), 400, 'validation', 'idempotency-key');
    assertProblem(await send(png(), { 'idempotency-key': 'é' }), 400, 'validation', 'idempotency-key');
    assertProblem(await send(png(), {}, `?filename=${'x'.repeat(4097)}`), 400, 'validation', 'filename');
    assert.deepEqual(await remains(), nothing);
  });

  it('answers a digest that does not match, and keeps nothing', async (t) => {
    const { send, remains } = await startUploads(t);
    assertProblem(await send(png('a'), { 'repr-digest': digestOf(png('b')) }), 400, 'digest_mismatch');
    const body = form({ file: [png('a'), 'a.png', 'image/png'], sha256: sha256(png('b')) });
    assertProblem(await send(body), 400, 'digest_mismatch');
    assertProblem(
      await send(png('a'), { 'repr-digest': digestOf(png('b')), 'idempotency-key': 'k' }),
      400,
      'digest_mismatch',
    );
    assert.deepEqual(await remains(), nothing);
  });
});

describe('401', () => {
  it('answers without a token, with a wrong one and with another scheme, and names its own', async (t) => {
    const { send, remains } = await startUploads(t);
    for (const authorization of ['', 'Bearer x', `Bearer skr_${'x'.repeat(43)}`, 'Basic YTpi']) {
      const answer = await send(png(), { authorization });
      assertProblem(answer, 401, 'unauthorized');
      assert.match(answer.headers.get('www-authenticate') ?? '', /^Bearer realm="skrepka"/);
    }
    assert.deepEqual(await remains(), nothing);
  });
});

describe('409', () => {
  it('answers a key whose first request is still running, with Retry-After, before it reads the body', async (t) => {
    const { send, points, url, ada } = await startUploads(t);
    const held = points.hold('accept.stored');
    const first = send(png(), { 'idempotency-key': 'k' });
    await held.reached;
    const line = await dial(t, url);
    await line.write(uploadHead(ada.token, { 'content-length': 1000, 'idempotency-key': 'k', expect: '100-continue' }));
    await line.until('"code":"idempotency_in_flight"');
    assert.match(line.received(), /^HTTP\/1\.1 409 .*retry-after: [1-9]/is);
    held.pass();
    assert.equal((await first).status, 202);
  });
});

describe('413', () => {
  const limit = 100_000;
  const options = { settings: { uploadBytesMax: limit } };

  it('answers one byte too many, declared, undeclared, in a form and with a lying length; takes the limit itself', async (t) => {
    const { send, remains } = await startUploads(t, options);
    const exact = Buffer.concat([png(), Buffer.alloc(limit - png().length)]);
    const over = Buffer.concat([exact, Buffer.alloc(1)]);
    const streamed = () => new Blob([over]).stream();
    assertProblem(await send(over), 413, 'file_too_large');
    assertProblem(await send(streamed()), 413, 'file_too_large');
    assertProblem(await send(form({ file: [over, 'a.png', 'image/png'] })), 413, 'file_too_large');
    assertProblem(await send(form({ file: [Buffer.alloc(limit * 3), 'a', 'text/plain'] })), 413, 'file_too_large');
    assert.deepEqual(await remains(), nothing);
    const kept = await send(exact);
    assert.deepEqual([kept.status, kept.body.size, kept.body.sha256], [202, limit, sha256(exact)]);
    assert.equal((await send(form({ file: [exact, 'a.png', 'image/png'] }))).status, 202);
  });

  it('never takes a cut body for a whole one when less is sent than was declared', async (t) => {
    const uploads = await startUploads(t, options);
    const { url, ada } = uploads;
    const line = await dial(t, url);
    await line.write(uploadHead(ada.token, { 'content-length': 1000 }));
    await line.write(png());
    line.socket.end();
    await line.untilClosed();
    assert.ok(!line.received().includes('202'));
    await untilNothing(uploads);
  });
});

describe('a form whose fields are hostile', () => {
  const boundary = { 'content-type': 'multipart/form-data; boundary=x' };
  const field = (name: string, bytes: number) =>
    `--x\r\ncontent-disposition: form-data; name="${name}"\r\n\r\n${'a'.repeat(bytes)}\r\n--x--\r\n`;

  it('is refused by the name of a field that only sounds known, and never gathered in memory', async (t) => {
    const { send, remains } = await startUploads(t);
    for (const name of ['toString', 'valueOf', 'constructor', '__proto__', 'hasOwnProperty']) {
      assertProblem(await send(Buffer.from(field(name, 200_000)), boundary), 400, 'validation');
    }
    assert.deepEqual(await remains(), nothing);
  });

  it('is counted as a whole when it comes in chunks and never comes to its file', async (t) => {
    const { send, remains } = await startUploads(t, { settings: { uploadBytesMax: 1_000 } });
    const preamble = Buffer.concat([Buffer.alloc(200_000, 'a'), Buffer.from(`\r\n${field('alt', 1)}`)]);
    const answer = await send(new Blob([preamble]).stream(), boundary);
    assert.ok([400, 413].includes(answer.status), `it was answered ${answer.status}`);
    assert.deepEqual(await remains(), nothing);
  });

  it('ends when its time is over, also while it trickles through a field', async (t) => {
    const { url, ada, remains } = await startUploads(t, { settings: { uploadMsMax: 1_000 } });
    const line = await dial(t, url);
    await line.write(uploadHead(ada.token, { ...boundary, 'transfer-encoding': 'chunked' }));
    const head = '--x\r\ncontent-disposition: form-data; name="alt"\r\n\r\n';
    await line.write(`${head.length.toString(16)}\r\n${head}\r\n`);
    await until('it is ended', async () => {
      if (!line.received().includes('408')) await line.write('1\r\na\r\n').catch(() => undefined);
      return line.received().includes('408');
    });
    assert.deepEqual(await remains(), nothing);
  });
});

describe('415', () => {
  it('answers what is declared as one of our pictures and is none, and keeps nothing', async (t) => {
    const { send, remains } = await startUploads(t);
    const html = Buffer.from('<!doctype html><script>alert(1)</script>');
    for (const type of ['image/jpeg', 'IMAGE/PNG; q=1', 'image/webp', 'image/gif', 'image/avif']) {
      assertProblem(await send(html, { 'content-type': type }, '?filename=cat.jpg'), 415, 'unsupported_image');
      assertProblem(await send(form({ file: [html, 'cat.jpg', type] })), 415, 'unsupported_image');
    }
    assert.deepEqual(await remains(), nothing);
  });

  it('answers a coded body and a media type that is none', async (t) => {
    const { send } = await startUploads(t);
    assertProblem(await send(png(), { 'content-encoding': 'gzip' }), 415, 'unsupported_media_type', 'content-encoding');
    assertProblem(await send(png(), { 'content-type': 'nonsense' }), 415, 'unsupported_media_type');
    assert.equal((await send(png(), { 'content-encoding': 'identity' })).status, 202);
  });
});

describe('422', () => {
  it('answers a key that was used with other bytes, another name, type or alt', async (t) => {
    const { send, remains } = await startUploads(t);
    const key = { 'idempotency-key': 'k' };
    assert.equal((await send(png(), { ...key, 'content-type': 'image/png' }, '?filename=a.png')).status, 202);
    const others = [
      await send(png('other'), { ...key, 'content-type': 'image/png' }, '?filename=a.png'),
      await send(png(), { ...key, 'content-type': 'image/png' }, '?filename=b.png'),
      await send(png(), { ...key, 'content-type': 'text/plain' }, '?filename=a.png'),
      await send(form({ file: [png(), 'a.png', 'image/png'], alt: 'x' }), key),
    ];
    for (const answer of others) assertProblem(answer, 422, 'idempotency_mismatch');
    assert.deepEqual(await remains(), { attachments: 1, jobs: 1, keys: 1, files: 1 });
  });
});

describe('503', () => {
  it('answers an outage of database or storage with Retry-After, and keeps nothing', async (t) => {
    const { send, faults, blobs, remains } = await startUploads(t);
    blobs.plan('put', { before: () => new BlobError('unavailable', 'no host') });
    const withoutStorage = await send(png());
    assertProblem(withoutStorage, 503, 'storage_unavailable');
    assert.match(withoutStorage.headers.get('retry-after') ?? '', /^[1-9]/);
    for (const verb of ['arrive', 'accept'] as const) {
      faults.plan(verb, { before: () => new StoreError('unavailable', 'down') });
      const withoutDatabase = await send(png());
      assertProblem(withoutDatabase, 503, 'unavailable');
      assert.match(withoutDatabase.headers.get('retry-after') ?? '', /^[1-9]/);
    }
    assert.deepEqual(await remains(), nothing);
  });

  it('is never a refusal when the outcome of the commit is unknown: the bytes are kept', async (t) => {
    const { send, faults, remains } = await startUploads(t);
    faults.plan('accept', { before: () => new StoreError('unknown', 'gone while committing') });
    assertProblem(await send(png()), 503, 'unavailable');
    assert.deepEqual(await remains(), { ...nothing, files: 1 });
    faults.plan('accept', { after: () => new StoreError('unknown', 'gone while committing') });
    assert.equal((await send(png())).status, 202);
  });
});
