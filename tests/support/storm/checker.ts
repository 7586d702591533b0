/**
 * The checker of a storm: knows every answered 202, waits until all is quiet, and then compares what was promised with what
 * there is. Each question answers with sentences about what is wrong, none when all is well.
 */
import { variantNames } from '../../../src/pipeline/attachment.ts';
import type { Blobs } from '../../../src/pipeline/ports.ts';
import { replayHistory } from '../../../src/postgres/history.ts';
import { type EventRow, toJobEvent } from '../../../src/postgres/shapes.ts';
import { type ShownAttachment, sha256 } from '../client.ts';
import { until } from '../until.ts';
import type { Sent } from './load.ts';
import type { KillablePostgres } from './postgres.ts';

export interface Checker {
  /** Resolves when no job is unfinished, or at the deadline; answers those that are. */
  unfinished(): Promise<string[]>;
  /** Every 202 is whole, or failed honestly. */
  promises(): Promise<string[]>;
  /** One key, one attachment, one job; and no row that nobody asked for. */
  doubles(): Promise<string[]>;
  histories(): Promise<string[]>;
  /** Failures that were counted against good pictures. */
  failures(): Promise<string[]>;
  /** Once the janitor is quiet: objects nobody names, and names without an object. */
  objects(): Promise<string[]>;
}

const deadlineMs = 120_000;

export function createChecker(postgres: KillablePostgres, blobs: Blobs, sent: readonly Sent[]): Checker {
  const rowsOf = async (text: string) => (await postgres.talk((client) => client.query(text))).rows;

  /** Asks until nothing is wrong; at the deadline, what is. */
  async function settled(what: string, ask: () => Promise<string[]>): Promise<string[]> {
    let wrong: string[] = [];
    const isRight = async () => {
      wrong = await ask();
      return wrong.length === 0;
    };
    await until(what, isRight, { deadlineMs, everyMs: 500 }).catch(() => undefined);
    return wrong;
  }

  async function lookAt({ user, ids, sha256: digest, isCorrupt, key }: Sent): Promise<string[]> {
    const [id] = ids;
    if (id === undefined) return [`${key} was never answered`];
    const answer = await user.ask(`/v1/attachments/${id}`);
    if (answer.status !== 200) return [`${id} was answered with 202, and now ${answer.status}`];
    const shown = (await answer.json()) as ShownAttachment;
    if (isCorrupt) {
      return shown.state === 'failed' && shown.error_code === 'corrupt_image'
        ? []
        : [`${id} is corrupt and ${shown.state} (${shown.error_code})`];
    }
    if (shown.state !== 'ready') return [`${id} is good and ${shown.state} (${shown.error_code})`];
    const names = shown.variants.map(({ name }) => name).sort();
    const wrong = [];
    if (names.join() !== [...variantNames].sort().join()) wrong.push(`${id} shows ${names.join()}`);
    const parts = [{ url: shown.content_url, sha256: digest }, ...shown.variants];
    for (const part of parts) {
      const response = await user.ask(part.url);
      const bytes = new Uint8Array(await response.arrayBuffer());
      if (response.status !== 200 || sha256(bytes) !== part.sha256) {
        wrong.push(`${part.url}: ${response.status}, ${bytes.length} bytes that are not those of its digest`);
      }
    }
    return wrong;
  }

  return {
    unfinished: () =>
      settled('every job is finished', async () => {
        const rows = await rowsOf("select * from jobs where state in ('queued', 'processing')");
        return rows.map((row) => `unfinished: ${JSON.stringify(row)}`);
      }),

    async promises() {
      const left = [...sent];
      const look = async () => {
        const wrong: string[] = [];
        for (let one = left.pop(); one; one = left.pop()) {
          const { key } = one;
          wrong.push(...(await lookAt(one).catch((error) => [`${key}: ${String(error)}`])));
        }
        return wrong;
      };
      return (await Promise.all([look(), look(), look(), look()])).flat();
    },

    async doubles() {
      const wrong = sent
        .filter(({ ids }) => new Set(ids).size > 1)
        .map(({ key, ids }) => `${key} has ${new Set(ids).size} attachments: ${ids.join(', ')}`);
      const known = new Set(sent.flatMap(({ ids }) => ids));
      for (const { id } of await rowsOf('select id from attachments')) {
        if (!known.delete(id)) wrong.push(`attachment ${id} belongs to no 202`);
      }
      wrong.push(...[...known].map((id) => `${id} was answered with 202 and has no row`));
      const jobs = await rowsOf(
        'select attachment_id, count(*) as n from jobs group by attachment_id having count(*) <> 1',
      );
      wrong.push(...jobs.map(({ attachment_id, n }) => `${attachment_id} has ${n} jobs`));
      const loose = await rowsOf('select id from attachments where id not in (select attachment_id from jobs)');
      return [...wrong, ...loose.map(({ id }) => `${id} has no job`)];
    },

    async histories() {
      const jobs = await rowsOf('select * from jobs');
      const events = await rowsOf('select job_id, to_jsonb(job_events) as event from job_events order by id');
      return jobs.flatMap((job) => {
        try {
          const own = events
            .filter(({ job_id }) => job_id === job.id)
            .map(({ event }) => toJobEvent(event as EventRow));
          const told = replayHistory(own);
          return Object.entries(told)
            .filter(([name, value]) => job[name] !== value)
            .map(([name, value]) => `the history of ${job.id} tells ${name} ${value}, its row ${job[name]}`);
        } catch (error) {
          return [`the history of ${job.id}: ${String(error)}`];
        }
      });
    },

    async failures() {
      const good = new Set(sent.filter(({ isCorrupt }) => !isCorrupt).flatMap(({ ids }) => ids));
      // A machine that is too busy to render within the time is no outage of ours.
      const events = await rowsOf(`
        select jobs.attachment_id, job_events.code, job_events.detail
        from job_events
        join jobs on jobs.id = job_events.job_id
        where job_events.reason in ('retried', 'failed', 'exhausted')
          and job_events.code is distinct from 'render_timeout'`);
      return events
        .filter(({ attachment_id }) => good.has(attachment_id))
        .map(({ attachment_id, code, detail }) => `${attachment_id} is good and was charged with ${code}: ${detail}`);
    },

    objects: () =>
      settled('the janitor is quiet and objects are what rows name', async () => {
        const [waiting] = await rowsOf('select count(*)::int as n from cleanups');
        const named = await rowsOf(`
          select key from variants
          union all
          select original_key from attachments where original_key is not null
          union all
          select staging_key from attachments where staging_gone_at is null`);
        const names = new Set(named.map(({ key }) => key as string));
        const wrong = waiting?.n === 0 ? [] : [`${waiting?.n} clean-ups wait`];
        for (const key of await keysOf(blobs)) {
          if (!names.delete(key)) wrong.push(`${key} is left, and no row names it`);
        }
        return [...wrong, ...[...names].map((key) => `${key} is named and not there`)];
      }),
  };
}

async function keysOf(blobs: Blobs): Promise<string[]> {
  const keys: string[] = [];
  for (let after: string | undefined; ; ) {
    const { objects, next } = await blobs.list('', after === undefined ? {} : { after });
    keys.push(...objects.map(({ key }) => key));
    if (next === null) return keys;
    after = next;
  }
}
