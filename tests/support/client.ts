/** A client of the HTTP API for journeys, with nothing from `src/`: what a user's program would do. */
import assert from 'node:assert/strict';
import { createHash, randomBytes } from 'node:crypto';
import { until as asked } from './until.ts';

export interface ShownAttachment {
  readonly id: string;
  readonly state: string;
  readonly sha256: string;
  readonly size: number;
  readonly attempts: number;
  readonly error_code: string | null;
  readonly content_url: string;
  readonly variants: readonly {
    name: string;
    url: string;
    size: number;
    sha256: string;
    content_type: string;
    width: number;
    height: number;
  }[];
}

export const sha256 = (bytes: Uint8Array) => createHash('sha256').update(bytes).digest('hex');

/** `base` is asked anew for each request: the API may be another process on another port by then. */
export async function register(base: () => string) {
  const account = { handle: `u${randomBytes(6).toString('hex')}`, password: randomBytes(12).toString('hex') };
  const made = await fetch(`${base()}/v1/users`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(account),
  });
  assert.equal(made.status, 201);
  const { token } = (await made.json()) as { token: string };
  const authorization = `Bearer ${token}`;

  const ask = (path: string, init: RequestInit = {}) =>
    fetch(`${base()}${path}`, { ...init, headers: { authorization, ...(init.headers as Record<string, string>) } });
  const json = (path: string, method: string, body: unknown) =>
    ask(path, { method, headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) });
  /** The response of a raw upload; rejects when the connection breaks. */
  const send = (
    bytes: Uint8Array,
    type = 'image/jpeg',
    headers: Record<string, string> = {},
    signal: AbortSignal | null = null,
  ) =>
    ask('/v1/attachments?filename=photo.jpg', {
      method: 'POST',
      signal,
      headers: { 'content-type': type, ...headers },
      body: new Uint8Array(bytes),
    });

  async function upload(
    bytes: Uint8Array,
    type = 'image/jpeg',
    headers: Record<string, string> = {},
  ): Promise<ShownAttachment> {
    const response = await send(bytes, type, headers);
    assert.equal(response.status, 202, await response.clone().text());
    return (await response.json()) as ShownAttachment;
  }
  async function attachment(id: string): Promise<ShownAttachment> {
    const response = await ask(`/v1/attachments/${id}`);
    assert.equal(response.status, 200);
    return (await response.json()) as ShownAttachment;
  }
  /** Asks until the state is `state`; a job that fails instead ends it at once, with its code. */
  async function until(id: string, state: 'ready' | 'failed', withinMs = 60_000): Promise<ShownAttachment> {
    const found = await asked(
      `attachment is ${state}`,
      async () => {
        const shown = await attachment(id);
        return (shown.state === state || shown.state === 'failed') && shown;
      },
      { deadlineMs: withinMs },
    );
    assert.equal(found.state, state, `${id} failed with ${found.error_code}`);
    return found;
  }
  async function bytesOf(path: string): Promise<Buffer> {
    const response = await ask(path);
    assert.equal(response.status, 200, path);
    return Buffer.from(await response.arrayBuffer());
  }
  /** Ready means downloadable: the original byte for byte, and each declared variant with its recorded size and digest. */
  async function assertWhole(shown: ShownAttachment, original: Uint8Array): Promise<void> {
    assert.equal(sha256(await bytesOf(shown.content_url)), sha256(original));
    for (const variant of shown.variants) {
      const bytes = await bytesOf(variant.url);
      assert.equal(bytes.length, variant.size, variant.name);
      assert.equal(sha256(bytes), variant.sha256, variant.name);
    }
  }
  return { authorization, ask, json, send, upload, attachment, until, bytesOf, assertWhole };
}
