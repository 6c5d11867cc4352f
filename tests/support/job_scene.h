/* SPDX-License-Identifier: BSD-3-Clause */
/* What tests of jobs share: a small state_dict, the file that it must become, and how to look. */
#ifndef TESTS_SUPPORT_JOB_SCENE_H
#define TESTS_SUPPORT_JOB_SCENE_H

#include <berth.h>
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/expected.h"
#include "tests/support/tree_scene.h"

#define N_WEIGHTS 20000
#define WEIGHTS_NBYTES (N_WEIGHTS * sizeof(float))
#define SMALL_TILES "io.threads=4 io.chunk_nbytes=1000"

extern float *weights;
extern int64_t steps[3];
extern berth_value *state;

void add(const char *name, berth_tensor tensor, int64_t n);
void begin_jobs(void);
void end_jobs(void);
void check_wait(berth_job *job, int code);
void check_file(const char *at, const void *content, size_t nbytes);

#endif
