/**
 * The declared table of faults: at which effects the pipeline can be struck, and by what. A run of the suite must have struck
 * every effect in every way that is possible there, and none that is not declared: then the ports and this table agree.
 */
import { ofReads, ofWrites, reads, toAsk, toEnd, toPublish, toRead, toWrite } from './ports.ts';
import { ofDisk, ofPoint, ofRendering } from './ports-worker.ts';
import type { Fate } from './world.ts';

/** Verbs of the store that processes use through their port; operators' own are called by the troubles of a schedule. */
const verbs = [
  ...['arrive', 'load', 'reserve', 'extendReservation', 'dropReservation', 'accept', 'acceptedAttachment'],
  ...['attachmentFor', 'takeDue', 'markRung', 'ringAgain', 'countAnnounced', 'recentPace', 'untilDueMs', 'queue'],
  ...['claim', 'readAttempt', 'renew', 'settle', 'fail', 'release'],
  ...['lead', 'dueCleanups', 'namedAmong', 'awaitingCleanup', 'passedCleanup', 'knownAttachments', 'expire', 'retire'],
  ...['addCleanups', 'feedReprocessing', 'audit', 'audited', 'rebuild', 'health'],
];
const points = [
  ...['accept.stored', 'accept.committed', 'relay.taken', 'relay.published', 'relay.marked', 'worker.claimed'],
  ...['worker.downloaded', 'worker.rendered', 'worker.storing', 'worker.stored', 'worker.settled', 'worker.acked'],
  'janitor.deleting',
];

const of = (port: string, names: readonly string[], fates: (name: string) => readonly Fate[]) =>
  names.map((name): [string, readonly Fate[]] => [`${port}.${name}`, fates(name)]);

/** Site → what can befall it besides that all goes well. */
export const declared: ReadonlyMap<string, readonly Fate[]> = new Map([
  ...of('store', verbs, (verb) => (reads.has(verb) || verb === 'lead' ? ofReads : ofWrites).fates),
  ...of('blobs', ['put', 'copy', 'deleteMany'], () => toWrite.fates),
  ...of('blobs', ['open', 'head', 'list', 'health'], () => toRead.fates),
  ...of('broker', ['publish'], () => toPublish.fates),
  ...of('broker', ['ack', 'nak', 'extend'], () => toEnd.fates),
  ...of('broker', ['health'], () => toAsk.fates),
  ...of('scratch', ['open', 'write', 'sweep', 'health'], () => ofDisk.fates),
  ...of('images', ['render'], () => ofRendering.fates),
  ...of('point', points, () => ofPoint.fates),
]);

/** `site fate` of which a run had none, and those that nobody declared. */
export function gapsIn(counts: Readonly<Record<string, number>>): { missing: string[]; undeclared: string[] } {
  const names = new Set([...declared].flatMap(([site, fates]) => ['ok', ...fates].map((fate) => `${site} ${fate}`)));
  return {
    missing: [...names].filter((name) => !counts[name]),
    undeclared: Object.keys(counts).filter((name) => !names.has(name)),
  };
}
