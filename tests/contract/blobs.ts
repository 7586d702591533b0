/**
 * The suite of the `Blobs` port: every driver passes all of it, so the pipeline may rely on all of it.
 *
 * A driver's test file calls `blobsContract` with a way to open a fresh, empty store. The cases are in `blobs/`.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Blobs } from '../../src/pipeline/ports.ts';
import { deathCases } from './blobs/death.ts';
import { keyCases } from './blobs/keys.ts';
import { readingCases } from './blobs/reading.ts';
import { streamingCases } from './blobs/streaming.ts';
import { writingCases } from './blobs/writing.ts';

/** A put in another process. */
export interface PutElsewhere {
  readonly key: string;
  readonly size: number;
  /** Of `noise`. */
  readonly seed: number;
  readonly pieceBytes: number;
  /** The body hangs for ever once it has yielded this many bytes; null: it ends. */
  readonly hangAt: number | null;
}

export interface RunningPut {
  /** Resolves when the driver has asked for the byte at this position, or more. */
  asked(position: number): Promise<void>;
  /** SIGKILL; resolves when the process is gone. Says whether the put had resolved. */
  kill(): Promise<{ resolved: boolean }>;
}

export interface BlobsHarness {
  readonly blobs: Blobs;
  /** What the store holds besides its objects: temporary files, unfinished uploads. Empty when nothing is under way. */
  residue(): Promise<readonly string[]>;
  putElsewhere(task: PutElsewhere): Promise<RunningPut>;
  /** Ends what is left and removes the store. */
  close(): Promise<void>;
}

export interface BlobsCase {
  /** A promise, completed by the driver's name. */
  readonly title: string;
  run(harness: BlobsHarness): Promise<void>;
}

/** Registers the suite for one driver. `keepsObjectsInMemory` drops the one promise that a store in memory cannot make. */
export function blobsContract(
  name: string,
  open: () => Promise<BlobsHarness>,
  { keepsObjectsInMemory = false }: { keepsObjectsInMemory?: boolean } = {},
): void {
  const cases = [...writingCases, ...readingCases, ...keyCases, ...deathCases];
  if (!keepsObjectsInMemory) cases.push(...streamingCases);
  for (const { title, run } of cases) {
    test(`${name}: ${title}`, async () => {
      const harness = await open();
      try {
        await run(harness);
        assert.deepEqual(await harness.residue(), [], 'nothing but objects is left behind');
      } finally {
        await harness.close();
      }
    });
  }
}
