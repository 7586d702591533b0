/** What text from users may hold, for the schemas of every field that takes some. */

/**
 * Any Unicode but NUL, which PostgreSQL cannot store, and surrogates without their other half, which UTF-8 cannot carry:
 * both would come back as something else than was sent.
 */
export const textPattern = '^[^\\u0000\\uD800-\\uDFFF]*$';

/** The same, and at least one character that can be seen. The look-ahead keeps it linear in the length of the text. */
export const visibleTextPattern = '^(?=\\s*\\S)[^\\u0000\\uD800-\\uDFFF]*$';
