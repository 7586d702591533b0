/** The roles that a process can have. Several processes of one role, or one process with several, are equally fine. */
export const roles = ['api', 'relay', 'worker', 'janitor'] as const;
export type Role = (typeof roles)[number];
