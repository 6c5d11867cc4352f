/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What conditions are wrapped in where mutation.py has rewritten the sources: included before every
 * file of that build. One condition of the whole program is changed, chosen by the environment:
 * so one build serves all mutants, and tells which of them would change something in a test.
 */
#ifndef TESTS_MUTANT_H
#define TESTS_MUTANT_H

extern int berth_mutant;                 /* the one that is active; -1: none */
extern unsigned char *berth_mutants_met; /* by number: 1 where it would have changed a value */

/* As if what failed had not: the error that it left is forgotten, too, where there is one. */
int berth_mutant_overlooks(void *error);

/* Mutant n: never taken. n + 1: taken when it was not, and not when it was. */
static inline int berth_mutate_if(int n, _Bool condition, void *error)
{
    if (condition)
        berth_mutants_met[n] = 1;
    berth_mutants_met[n + 1] = 1;
    return berth_mutant == n       ? condition && berth_mutant_overlooks(error)
           : berth_mutant == n + 1 ? !condition
                                   : condition;
}

/* Mutant n: an operand that no longer counts; `neutral` is what changes nothing. */
static inline int berth_mutate_operand(int n, _Bool neutral, _Bool operand, void *error)
{
    if (operand != neutral)
        berth_mutants_met[n] = 1;
    return berth_mutant == n ? (operand && berth_mutant_overlooks(error)) || neutral : operand;
}

#endif
