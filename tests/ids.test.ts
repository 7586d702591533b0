/** Ids: their form, their order, and that no two are alike. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { isId, isTraceparent, newId, newTraceparent, randomHex } from '../src/ids.ts';

const many = 20_000;

describe('new ids', () => {
  it('are UUIDv7 of now, each greater than the one before, thousands of them in a millisecond', () => {
    const before = Date.now();
    const ids = Array.from({ length: many }, newId);
    for (const [at, id] of ids.entries()) {
      assert.ok(isId(id) && id[14] === '7' && /[89ab]/.test(id[19] ?? ''), id);
      assert.ok(at === 0 || id > (ids[at - 1] ?? ''), `${ids[at - 1]} before ${id}`);
    }
    const firstMs = Number.parseInt((ids[0] ?? '').replace('-', '').slice(0, 12), 16);
    assert.ok(firstMs >= before && firstMs <= Date.now(), `${firstMs}`);
  });

  it('share nothing beyond their time and count', () => {
    // Forty bits are few: of twenty thousand, two were alike once in five thousand runs.
    const ends = new Set(Array.from({ length: 1000 }, () => newId().slice(-10)));
    assert.equal(ends.size, 1000);
  });
});

describe('new trace contexts', () => {
  it('are well-formed and no two alike', () => {
    const all = Array.from({ length: many }, newTraceparent);
    assert.ok(all.every(isTraceparent));
    assert.equal(new Set(all).size, many);
  });
});

describe('random names', () => {
  it('have the wanted length, and no two are alike', () => {
    const names = Array.from({ length: many }, () => randomHex(8));
    assert.ok(names.every((name) => /^[0-9a-f]{16}$/.test(name)));
    assert.equal(new Set(names).size, many);
  });
});
