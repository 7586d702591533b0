/** Conditional and range requests, without a server: what of an object answers which headers. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { type Selection, select } from '../../src/http/conditions.ts';

const etag = '"abc"';
const size = 10;
const whole: Selection = { kind: 'whole' };
const part = (start: number, end: number): Selection => ({ kind: 'part', range: { start, end } });

function ask(headers: { range?: string; ifRange?: string; ifNoneMatch?: string }, method = 'GET'): Selection {
  const { range, ifRange, ifNoneMatch } = headers;
  return select({ method, range, ifRange, ifNoneMatch }, etag, size);
}

describe('a range', () => {
  const cases: readonly [string, Selection][] = [
    ['bytes=0-0', part(0, 0)],
    ['bytes=0-9', part(0, 9)],
    ['bytes=3-5', part(3, 5)],
    ['bytes=3-', part(3, 9)],
    ['bytes=9-', part(9, 9)],
    ['bytes=3-100', part(3, 9)],
    ['bytes=-3', part(7, 9)],
    ['bytes=-10', part(0, 9)],
    ['bytes=-100', part(0, 9)],
    ['BYTES=1-2', part(1, 2)],
    ['bytes= 1-2 ', part(1, 2)],
    ['bytes=0-99999999999999999999999', part(0, 9)],
    ['bytes=10-', { kind: 'unsatisfiable' }],
    ['bytes=10-12', { kind: 'unsatisfiable' }],
    ['bytes=99999999999999999999999-', { kind: 'unsatisfiable' }],
    ['bytes=-0', { kind: 'unsatisfiable' }],
    ['bytes=5-3', whole],
    ['bytes=0-1,3-4', whole],
    ['bytes=', whole],
    ['bytes=-', whole],
    ['bytes=a-b', whole],
    ['bytes=1', whole],
    ['bytes=+1-2', whole],
    ['bytes=0x1-2', whole],
    ['lines=1-2', whole],
    ['', whole],
  ];
  for (const [range, expected] of cases) {
    it(`of the form "${range}" selects ${JSON.stringify(expected)} of ten bytes`, () => {
      assert.deepEqual(ask({ range }), expected);
    });
  }

  it('means nothing to a HEAD', () => {
    assert.deepEqual(ask({ range: 'bytes=0-0' }, 'HEAD'), whole);
  });
});

describe('If-Range', () => {
  it('lets a range through with the very same strong validator', () => {
    assert.deepEqual(ask({ range: 'bytes=1-2', ifRange: etag }), part(1, 2));
  });
  for (const ifRange of ['"other"', 'W/"abc"', 'Sun, 06 Nov 1994 08:49:37 GMT', 'abc', '*', '']) {
    it(`of the form ${ifRange || 'nothing'} turns a range into the whole`, () => {
      assert.deepEqual(ask({ range: 'bytes=1-2', ifRange }), whole);
    });
  }
  it('keeps a range that cannot be satisfied from being refused', () => {
    assert.deepEqual(ask({ range: 'bytes=99-', ifRange: '"other"' }), whole);
  });
});

describe('If-None-Match', () => {
  for (const ifNoneMatch of ['"abc"', 'W/"abc"', '*', '"x", "abc"', '"x",W/"abc" , "y"']) {
    it(`of the form ${ifNoneMatch} knows the object`, () => {
      assert.deepEqual(ask({ ifNoneMatch }), { kind: 'unchanged' });
    });
  }
  for (const ifNoneMatch of ['"x"', 'abc', '"ABC"', '']) {
    it(`of the form ${ifNoneMatch || 'nothing'} does not know the object`, () => {
      assert.deepEqual(ask({ ifNoneMatch }), whole);
    });
  }
  it('goes before a range, even one that cannot be satisfied', () => {
    assert.deepEqual(ask({ ifNoneMatch: etag, range: 'bytes=99-' }), { kind: 'unchanged' });
  });
});
