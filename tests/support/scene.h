/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The folder and the file that a test works with. There is one of each, because Criterion runs
 * every test in a process of its own.
 */
#ifndef TESTS_SUPPORT_SCENE_H
#define TESTS_SUPPORT_SCENE_H

#include "tests/support/support.h"

extern char *folder, *path;

/* Makes the folder; `path` is this name in it. */
void begin_scene(const char *name);
/* The file is "model.pt". */
void begin_model_scene(void);
/* Removes the folder and frees the rest. */
void end_scene(void);

/* Puts options in force, until berth_config_unpatch. */
void patch(const char *options);

#endif
