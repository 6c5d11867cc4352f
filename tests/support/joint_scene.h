/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Joint saves: the folder with the file, and one with the file that is expected; a state of many
 * kinds of tensors, whole or as an outline, and the slices that each of n writers has of it.
 */
#ifndef TESTS_SUPPORT_JOINT_SCENE_H
#define TESTS_SUPPORT_JOINT_SCENE_H

#include <berth/joint.h>

#include "tests/support/support.h"

extern char *expected_path;

/* Makes both folders; at `path` of scene.h lies an old file. */
void begin_joint_scene(void);
void end_joint_scene(void);
/* Options of all writers, as a patch is its thread's: for berth_params.config. NULL: none are set.
 */
extern berth_config *joint_config;
void set_joint_options(const char *options);
void unset_joint_options(void);
/* The file at `path` is that at expected_path, and alone in its folder. */
void check_joint_file(const char *what);

typedef struct joint_state {
    berth_tree *tree;
    berth_value *value;
} joint_state;

/* With its bytes, or as an outline. The bytes live as long as the process. */
joint_state joint_state_new(bool is_outline);
/* One writer writes these slices, and the save gets its receipt. Returns the receipt's bytes. */
size_t joint_write_and_tell(berth_joint *joint, const berth_joint_info *info, size_t writer,
                            const berth_slice *slices, size_t n, const berth_params *params);
/* One writer's part, in this process. The receipt is berth_free's. */
int joint_write_share(const void *ticket, size_t ticket_nbytes, size_t n_writers, size_t writer,
                      void **receipt, size_t *receipt_nbytes, berth_error *error);

/* The same in a process for each writer; the receipts are files in a folder of their own. */
typedef struct joint_receipts {
    char *folder;
    size_t n;
} joint_receipts;
joint_receipts joint_write_in_processes(const void *ticket, size_t ticket_nbytes, size_t n_writers);
uint8_t *joint_receipt_of(const joint_receipts *receipts, size_t writer, size_t *nbytes);
void joint_receipts_end(joint_receipts *receipts);

#endif
