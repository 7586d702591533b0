/** File names in headers, without a server: in both directions, for names that broke other systems. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { reprDigest } from '../../src/http/digest.ts';
import { contentDisposition, nameFromHeader, partFromHeader, storedName } from '../../src/http/disposition.ts';
import { hardNames } from '../support/names.ts';

/** A header as Node hands it over: one byte a character. */
const sent = (text: string) => Buffer.from(text).toString('latin1');

describe('a name that a raw upload gives', () => {
  it('is read from filename* whatever it holds, and comes before filename', () => {
    for (const name of hardNames) {
      const encoded = encodeURIComponent(name).replace(/['()*]/g, (c) => `%${c.charCodeAt(0).toString(16)}`);
      for (const header of [
        `attachment; filename*=UTF-8''${encoded}`,
        `attachment; filename="other"; filename*=utf-8'en'${encoded}`,
        `attachment; filename*=UTF-8''${encoded}; filename=other`,
      ]) {
        assert.equal(nameFromHeader(header), name, header);
      }
    }
  });

  it('is read from filename in UTF-8, quoted or not, and in Latin-1 where it is not UTF-8', () => {
    assert.equal(nameFromHeader(sent('attachment; filename="日本-é-😀.jpg"')), '日本-é-😀.jpg');
    assert.equal(nameFromHeader(sent('attachment; filename=日本.jpg')), '日本.jpg');
    assert.equal(nameFromHeader('attachment; filename="caf\xe9.jpg"'), 'café.jpg');
    assert.equal(nameFromHeader('attachment; filename="a\\"b.jpg"'), 'a"b.jpg');
  });

  it('falls back to filename where filename* cannot be decoded', () => {
    assert.equal(nameFromHeader(`attachment; filename=a.jpg; filename*=UTF-8''%ff%fe`), 'a.jpg');
    assert.equal(nameFromHeader(`attachment; filename=a.jpg; filename*=KOI8-R''%C1`), 'a.jpg');
  });

  it('is missing without a header or a parameter', () => {
    for (const header of [undefined, '', 'attachment', 'inline; x=y']) assert.equal(nameFromHeader(header), null);
  });
});

describe('a part of a form', () => {
  it('names field and file as browsers write them', () => {
    const part = partFromHeader(sent('form-data; name="file"; filename="q%22 back\\slash 日本 100%.jpg"'));
    assert.deepEqual(part, { field: 'file', fileName: 'q" back\\slash 日本 100%.jpg' });
    assert.deepEqual(partFromHeader('form-data; name=alt'), { field: 'alt', fileName: null });
    assert.deepEqual(partFromHeader(`form-data; name=file; filename*=UTF-8''%C3%A9`), { field: 'file', fileName: 'é' });
  });

  it('keeps the whole name where quotes are escaped by backslashes, and a backslash at the end of a name', () => {
    const named = (filename: string) => partFromHeader(`form-data; name="file"; filename="${filename}"`)?.fileName;
    assert.equal(named('a\\"b.jpg'), 'a"b.jpg');
    assert.equal(named('\\"a\\"'), '"a"');
    assert.equal(named('a\\";b.jpg'), 'a";b.jpg');
    assert.equal(named('a\\\\\\"b.jpg'), 'a\\"b.jpg');
    assert.equal(named('folder\\'), 'folder\\');
    assert.deepEqual(partFromHeader('form-data; filename="folder\\"; name="file"'), {
      field: 'file',
      fileName: 'folder\\',
    });
  });

  it('is none without the word form-data or a field', () => {
    for (const header of [undefined, '', 'attachment; name=a', 'form-data; filename=a']) {
      assert.equal(partFromHeader(header), null);
    }
  });
});

describe('a stored name', () => {
  it('is exactly the given one wherever it can be', () => {
    for (const name of hardNames) assert.equal(storedName(name), name);
  });

  const cases: readonly [string | null, string][] = [
    [null, 'upload'],
    ['', 'upload'],
    ['.', 'upload'],
    ['..', 'upload'],
    ['a/..', 'upload'],
    ['../../etc/passwd', 'passwd'],
    ['folder/', 'upload'],
    ['C:\\fakepath\\cat.jpg', 'cat.jpg'],
    ['\\\\host\\share\\cat.jpg', 'cat.jpg'],
    ['a\r\nSet-Cookie: b.jpg', 'a__Set-Cookie: b.jpg'],
    ['nul\0.jpg', 'nul_.jpg'],
    ['c1\u0085.jpg', 'c1_.jpg'],
    ['lone\ud83d.jpg', 'lone\ufffd.jpg'],
    ['\udc00', '\ufffd'],
  ];
  for (const [given, stored] of cases) {
    it(`is ${JSON.stringify(stored)} for ${JSON.stringify(given)}`, () => assert.equal(storedName(given), stored));
  }

  it('has at most 255 code points, keeps its extension, and cuts no pair of surrogates', () => {
    const long = storedName(`${'😀'.repeat(300)}.jpeg`);
    assert.equal([...long].length, 255);
    assert.ok(long.endsWith('😀.jpeg') && long.isWellFormed());
    assert.equal([...storedName(`${'a'.repeat(200)}.${'b'.repeat(200)}`)].length, 255);
    assert.equal(storedName('a'.repeat(255)), 'a'.repeat(255));
  });
});

describe('the disposition of a download', () => {
  const injecting = ['a\r\nX-Evil: 1', 'a"; filename=evil.exe', '\0', 'lone\ud83d', '\n', '"', '\\', '../../x', ''];
  it('is a well-formed header for every name, and tells the name exactly', () => {
    for (const name of [...hardNames, ...injecting]) {
      const header = contentDisposition('attachment', name);
      assert.match(
        header,
        /^attachment; filename=(?:"[\x20-\x7e]*"|[!#$%&'*+.^_`|~\w-]+)(?:; filename\*=UTF-8''[\w%.~!$&+^`|-]+)?$/,
      );
      assert.equal(nameFromHeader(header), storedName(name), header);
    }
  });

  it('has a plain form alone where that one is exact', () => {
    assert.equal(contentDisposition('inline', 'cat.jpg'), 'inline; filename=cat.jpg');
    assert.equal(contentDisposition('inline', 'my cat.jpg'), 'inline; filename="my cat.jpg"');
    assert.equal(
      contentDisposition('inline', 'é😀.jpg'),
      `inline; filename=__.jpg; filename*=UTF-8''%C3%A9%F0%9F%98%80.jpg`,
    );
  });
});

describe('Repr-Digest', () => {
  const bytes = Buffer.alloc(32, 7);
  const hex = bytes.toString('hex');
  const base64 = bytes.toString('base64');
  const cases: readonly [string | undefined, string | null][] = [
    [undefined, null],
    [`sha-256=:${base64}:`, hex],
    [`sha-512=:YQ==:, sha-256=:${base64}:`, hex],
    [`md5=:YQ==:`, null],
    [`sha-256=:${Buffer.alloc(32).toString('base64')}:, sha-256=:${base64}:`, hex],
    [`sha-256=:${base64}:;q=1`, hex],
  ];
  for (const [header, expected] of cases) {
    it(`of the form ${header} declares ${expected}`, () => assert.equal(reprDigest(header), expected));
  }
  for (const header of ['', 'sha-256', `sha-256=${base64}`, 'sha-256=:YQ==:', 'sha-256=:!:', 'SHA-256=:YQ==:', ',']) {
    it(`of the form "${header}" is refused, naming the header`, () => {
      assert.throws(() => reprDigest(header), { code: 'validation', members: { field: 'repr-digest' } });
    });
  }
});
