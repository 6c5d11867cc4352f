/* SPDX-License-Identifier: BSD-3-Clause */
/* The file of a scene, opened: one checkpoint, and the error of the last call. */
#ifndef TESTS_SUPPORT_OPENED_H
#define TESTS_SUPPORT_OPENED_H

#include <berth/more.h>

#include "tests/support/scene.h"

extern berth_checkpoint *checkpoint;
extern berth_error error;

/*
 * Parameters of a call with these options alone ("load.check=none ..."), whatever the environment
 * says of debug mode. They last until the next call of this.
 */
const berth_params *only(const char *options, berth_stats *stats);
/* Opens the file with these options, in the place of what was open. */
void open_as(const char *options);
void close_opened(void);
/* Loads a selection and returns the statistics of that. */
berth_stats fetched(const berth_selection *selection);
/* The i-th tensor that was saved, and what is known of its storage. */
const berth_tensor *tensor_at(size_t i);
berth_storage_stats stats_at(size_t i);

#endif
