/** What the acts of level 4 share: the operator's view of a job, uploads, workers that come and go. */
import assert from 'node:assert/strict';
import type { RoleOptions, RoleProcess } from '../tests/support/role.ts';
import { until } from '../tests/support/until.ts';
import type { Checks } from './checks.ts';
import { expectStatus, type HttpClient } from './http-client.ts';
import type { Narration } from './narration.ts';
import type { Person, Shown } from './scenario-people.ts';
import type { Stage } from './stage.ts';

export interface OperateScene extends HttpClient {
  readonly stage: Stage;
  readonly checks: Checks;
  readonly narration: Narration;
  readonly photo: Buffer;
  readonly author: Person;
  readonly operator: Person;
  /** The API that runs now. Its successor listens on the same port. */
  readonly api: { current: RoleProcess };
}

/** A job as operators see it; the fields that the acts look at. */
export interface SeenJob {
  readonly id: string;
  readonly attachment_id: string;
  readonly state: string;
  readonly generation: number;
  readonly attempts: number;
  readonly failures: number;
  readonly crashes: number;
  readonly rings: number;
  readonly fence: number;
  readonly error_code: string | null;
  readonly error_detail: string | null;
  readonly worker: string | null;
  readonly lease_until: string | null;
}

export interface SeenEvent {
  readonly at: string;
  readonly from: string | null;
  readonly to: string;
  readonly fence: number;
  readonly who: string;
  readonly reason: string;
  readonly code: string | null;
}

/** An upload, answered with 202. */
export async function upload(
  { ask, author, photo }: OperateScene,
  headers: Readonly<Record<string, string>> = {},
): Promise<Shown> {
  const path = '/v1/attachments?filename=photo.jpg';
  const all = { 'content-type': 'image/jpeg', ...headers };
  return expectStatus(await ask('POST', path, { ...author, headers: all, body: photo }), 202).json as unknown as Shown;
}

/** The newest attachment of the author: how one is found whose answer was lost. */
export async function newest({ ask, author }: OperateScene): Promise<Shown> {
  const { json } = expectStatus(await ask('GET', '/v1/attachments?limit=1', author), 200);
  const [shown] = (json as unknown as { items: Shown[] }).items;
  assert.ok(shown, 'there is no attachment');
  return shown;
}

/** The one job of an attachment, as the list of operators has it; fails when there is another. */
export async function jobOf({ ask, author, operator }: OperateScene, attachmentId: string): Promise<SeenJob> {
  const { json } = expectStatus(await ask('GET', `/v1/admin/jobs?owner_id=${author.id}&limit=200`, operator), 200);
  const jobs = (json as unknown as { items: SeenJob[] }).items.filter((job) => job.attachment_id === attachmentId);
  assert.equal(jobs.length, 1, 'one job for the attachment');
  return jobs[0] as SeenJob;
}

/** The history of a job is these steps, oldest first and no others. Quoted line by line. */
export async function hasHistory(scene: OperateScene, jobId: string, reasons: readonly string[]): Promise<void> {
  const { ask, operator, narration, checks } = scene;
  const events = await checks.check('the history of the job says so', async () => {
    const { json } = expectStatus(await ask('GET', `/v1/admin/jobs/${jobId}`, operator), 200);
    const found = (json as unknown as { events: SeenEvent[] }).events;
    assert.deepEqual(
      found.map(({ reason }) => reason),
      reasons,
    );
    return { value: found, note: `job ${jobId}` };
  });
  for (const { at, from, to, fence, reason, who, code } of events) {
    const step = `${(from ?? '').padStart(10)} → ${to.padEnd(10)}`;
    const by = /:(\d+)$/.exec(who)?.[1];
    const rest = `${reason}${code === null ? '' : ` ${code}`}${by ? `, by process ${by}` : ''}`;
    narration.quote(`${at.slice(11, 23)} ${step} fence ${fence}  ${rest}`);
  }
}

/** What tells a lease: who holds it, under which fence, until when. */
export function leaseLine({ state, fence, worker, lease_until: until }: SeenJob): string {
  const holder = /:(\d+)$/.exec(worker ?? '')?.[1] ?? 'nobody';
  return `${state}, fence ${fence}, worker ${holder}, lease_until ${until?.slice(11, 23) ?? 'none'}`;
}

/** One process with these roles; a check that it started. */
export async function comes(
  { stage, checks }: OperateScene,
  what: string,
  roles: RoleOptions['roles'],
  options: Pick<RoleOptions, 'settings' | 'points'> = {},
): Promise<RoleProcess> {
  return await checks.check(what, async () => {
    const role = await stage.play(roles, options);
    return { value: role, note: `process ${role.pid}` };
  });
}

/** Resolves when the process has died by SIGKILL, by its own hand at a point. */
export async function assertKilled(role: RoleProcess): Promise<void> {
  assert.equal((await role.ended).signal, 'SIGKILL');
}

/** Ends processes that served their act, in order. */
export async function leave(...roles: readonly RoleProcess[]): Promise<void> {
  for (const role of roles) assert.equal(await role.stop(), 0);
}

/** Names and digests of the variants: what two runs must have in common. */
export function digests({ variants }: Shown): Readonly<Record<string, string>> {
  return Object.fromEntries(variants.map(({ name, sha256 }) => [name, sha256]).sort());
}

/** The original is byte for byte the photograph that was sent, and the three variants can be read. Answers the words for it. */
export async function assertWhole({ ask, author, photo }: OperateScene, shown: Shown): Promise<string> {
  const { bytes } = expectStatus(await ask('GET', `/v1/attachments/${shown.id}/content`, author), 200);
  assert.ok(bytes.equals(photo), `${bytes.length} bytes, and not those that were sent`);
  for (const { url } of shown.variants) expectStatus(await ask('GET', url, author), 200);
  return `${bytes.length} bytes, ${shown.variants.length} variants`;
}

/** Asks until the answer is truthy, and gives it; what does not come in time did not hold. */
export async function within<T>(what: string, ask: () => T | Promise<T>) {
  return await until(what, ask, { deadlineMs: 60_000, everyMs: 100 }).catch((cause: unknown) => {
    if (!(cause instanceof Error) || !cause.message.startsWith('Waited ')) throw cause;
    throw new assert.AssertionError({ message: cause.message });
  });
}
