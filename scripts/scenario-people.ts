/** The people of the scenarios: how they register, upload and wait, over HTTP as anyone would. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import type { Checks } from './checks.ts';
import { expectStatus, type HttpClient } from './http-client.ts';

export interface Person {
  readonly id: string;
  readonly handle: string;
  readonly token: string;
}

export const readyMsMax = 90_000;

export async function register({ ask }: HttpClient, { check }: Checks, name: string): Promise<Person> {
  return await check(`${name} registers`, async () => {
    const handle = `${name}-${randomBytes(4).toString('hex')}`;
    const password = randomBytes(16).toString('hex');
    const { json } = expectStatus(await ask('POST', '/v1/users', { json: { handle, password } }), 201);
    const { user, token } = json as { user: { id: string }; token: string };
    return { value: { id: user.id, handle, token }, note: `user ${user.id}` };
  });
}

/** What an attachment shows to its owner. */
export interface Shown {
  readonly id: string;
  readonly state: string;
  readonly attempts: number;
  readonly sha256: string;
  readonly error_code: string | null;
  readonly error_message: string | null;
  readonly variants: readonly { readonly name: string; readonly sha256: string; readonly url: string }[];
}

/** Asks, long, until the attachment is ready or failed. Rejects an assertion when it is neither in time. */
export async function untilEnded({ ask }: HttpClient, { token }: Person, id: string): Promise<Shown> {
  const sinceMs = performance.now();
  while (performance.now() - sinceMs < readyMsMax) {
    const { json } = expectStatus(await ask('GET', `/v1/attachments/${id}?wait=20`, { token }), 200);
    if (json?.state === 'ready' || json?.state === 'failed') return json as unknown as Shown;
  }
  throw new assert.AssertionError({ message: `it was neither ready nor failed after ${readyMsMax / 1000} s` });
}

/** The same, and it must be ready, with its three variants. */
export async function untilReady(client: HttpClient, person: Person, id: string): Promise<Shown> {
  const shown = await untilEnded(client, person, id);
  assert.equal(shown.state, 'ready', `it failed with ${shown.error_code}`);
  assert.equal(shown.variants.length, 3);
  return shown;
}
