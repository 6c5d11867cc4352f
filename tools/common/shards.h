/* SPDX-License-Identifier: BSD-3-Clause */
/* Checkpoints in several files that an index names, "model.safetensors.index.json". */
#ifndef BERTH_TOOLS_SHARDS_H
#define BERTH_TOOLS_SHARDS_H

#include <berth.h>
#include <jansson.h>

#include "tools/common/set.h"

/* A checkpoint in several files, and the index that names them. */
typedef struct shard_set {
    const char *path; /* of the index */
    json_t *json;
    json_t *map;        /* from the names of tensors to files */
    const char **files; /* their names, each once, in order */
    char **paths;       /* of the files; of URLs what may be shown, as keep_url has it */
    size_t n_files;
    berth_checkpoint **checkpoints; /* of the files; NULL: not opened */
} shard_set;

/* By its name: model.safetensors.index.json. */
bool is_shard_index(const char *path);
/* Reads the index. Returns 0, or an exit code after printing why; shard_set_free is due in any
 * case. */
int shard_set_read(const char *path, shard_set *set);
void shard_set_free(shard_set *set);
/*
 * Opens the files. Returns 0, or an exit code after printing why; quietly: tries all of them, and
 * prints nothing.
 */
int shard_set_open(shard_set *set, bool quietly);
/* The checkpoint of a file; NULL: it is not open. */
berth_checkpoint *shard_set_find(const shard_set *set, const char *file);
/* As one checkpoint. Returns 0, or an exit code after printing why. */
int shard_set_make(const char *path, file_set **made);

#endif
