/** What users, operators and machines do in a schedule, besides the fates of single effects. */
import { createDoctor, type Report } from '../../src/pipeline/doctor.ts';
import { newestVersion } from '../../src/pipeline/recipe.ts';
import { isHurt, Violation } from './invariants.ts';
import { fatal, type Scene } from './stage.ts';

export function troubles(scene: Scene, { faultMs, losses }: { faultMs: number; losses: boolean }): void {
  const { world } = scene;
  const acts = [...ofUsers(scene), ...ofMachines(scene), ...(losses ? ofStorage(scene) : [])];
  const count = world.between(2, losses ? 16 : 10);
  for (let number = 0; number < count; number += 1) world.after(world.between(0, faultMs), world.pick(acts));
}

type Act = () => void;

function ofUsers(scene: Scene): Act[] {
  const { world, tables, moments, config } = scene;
  return [
    () => {
      const row = world.pick([...tables.attachments.values()]);
      if (row) moments.deleteAttachment(row.ownerId, row.id, { graceMs: config.graceMs });
    },
    () => {
      const job = world.pick([...tables.jobs.values()]);
      if (job) moments.replay(job.id, { who: 'operator', spacingMs: config.spacingMs });
    },
    () => {
      const row = world.pick([...tables.attachments.values()]);
      if (!row) return;
      const keys = row.variants.map(({ key }) => key);
      moments.rebuild(row.id, { keys, who: 'operator' });
    },
    () => void moments.askReprocessing({ version: newestVersion, retryFailed: world.random() < 0.5, who: 'operator' }),
    () => void doctorsVisit(scene),
  ];
}

function ofMachines({ world, bells, cast, tables }: Scene): Act[] {
  const busy = () => {
    const names = [...tables.jobs.values()].filter(({ state }) => state === 'processing').map(({ worker }) => worker);
    return cast.living().find(({ process }) => names.includes(process.name));
  };
  return [
    () => bells.wipe(),
    () => bells.rollBack(),
    () => bells.swallow(world.between(20_000, 90_000)),
    () => {
      const actor = world.pick(cast.living());
      if (actor) cast.drain(actor, world.random() < 0.5);
    },
    () => {
      const actor = busy();
      if (actor) cast.drain(actor, world.random() < 0.7);
    },
    () => {
      const actor = world.pick(cast.living());
      if (actor) world.pause(actor.process, world.between(10_000, 120_000));
    },
    () => {
      const actor = world.pick(cast.living());
      if (actor) world.crash(actor.process);
    },
  ];
}

function ofStorage(scene: Scene): Act[] {
  const { world, objects, lost } = scene;
  const visit = () => void doctorsVisit(scene);
  const lose = () => {
    const keys = [...objects.stored.keys()];
    // Mostly what can be made anew.
    const variants = keys.filter((key) => key.startsWith('attachments/') && !key.includes('/original.'));
    const key = world.pick(world.random() < 0.7 && variants.length > 0 ? variants : keys);
    if (!key) return;
    objects.lose(key);
    lost.add(key);
  };
  return [...Array.from({ length: 6 }, () => lose), visit, visit, visit];
}

export interface Visit {
  isOver(): boolean;
  /** Throws when the doctor did not come to an end, or saw what is not there. */
  check(): void;
}

/** A doctor examines everything and has mended what can be mended. What it tells must be so. */
export function doctorsVisit(scene: Scene): Visit {
  const { world, cast, config } = scene;
  const { ports } = cast.hire('doctor');
  const doctor = createDoctor(ports, config);
  let report: Report | null = null;
  let failed = false;
  const never = new AbortController().signal;
  doctor.examine({ repair: true, deep: true, who: 'doctor', onProgress() {} }, never).then(
    (told) => {
      report = told;
      fatal(world, () => checkFindings(scene, told));
    },
    () => {
      failed = true;
    },
  );
  return {
    isOver: () => report !== null || failed,
    check() {
      if (report === null) throw new Violation('I6', 'a doctor did not come to an end, although nothing disturbed it');
    },
  };
}

function checkFindings({ tables, lost }: Scene, { findings }: Report): void {
  for (const { kind, attachmentId, key, detail } of findings) {
    const row = tables.attachments.get(attachmentId ?? '');
    // Between its second look and its word the owner may have deleted it.
    if (kind === 'stray' || !row || row.deletedAt !== null || isHurt({ lost }, row.id)) continue;
    throw new Violation('I11', `a doctor tells of ${key}: ${detail}, and nothing was ever lost by the storage`);
  }
}
