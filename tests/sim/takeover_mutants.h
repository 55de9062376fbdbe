/* takeover_mutants.h - faults of a coordinator that sim_takeover_seeds.c detects: calls without effect. */
#ifndef WEFT_TESTS_SIM_TAKEOVER_MUTANTS_H
#define WEFT_TESTS_SIM_TAKEOVER_MUTANTS_H

#include <stdbool.h>

bool takeover_mutant_select(const char *name); /* false: there is no such mutant */

#endif
