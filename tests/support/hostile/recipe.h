/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Archives by recipe: the sample of tests/load/builder.h as PyTorch writes it, with some facts
 * changed, each by its name. The rest is computed, so that what is wrong is what the recipe says
 * and nothing else. A line a change (tests/hostile/README.md tells all of them):
 *
 *     data/1 local.method 8          a number; +1, -1, ^1: added, taken off, exclusive or
 *     data/1 method 8                in both headers
 *     end comment 'a' alt.end        bytes; "alt." items are a second directory and its end
 * records, alt:data/1 central.offset @data/0   changed by their own lines; @: where something
 * begins add x 'bytes'                  a record more; drop, swap: records of the sample
 */
#ifndef TESTS_SUPPORT_RECIPE_H
#define TESTS_SUPPORT_RECIPE_H

#include "tests/support/hostile/recipe_values.h"

/* ---- directory and end records ---- */

void add_listing_item(struct recipe *recipe, const char *item, size_t n);

/* ---- the whole ---- */

void render(struct recipe *recipe);
void begin_recipe(struct recipe *recipe);
void end_recipe(struct recipe *recipe);

/* One line: a change of the list of records, or of a fact. */
void follow(struct recipe *recipe, const char *line);

#endif
