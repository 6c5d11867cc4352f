/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A disk that loses its power (W5), in memory. What saving does to a folder is recorded through the
 * system-call table. A power cut at a moment then leaves: of each file what was synced, and any
 * subset of the blocks written and of the sizes set since; of the folder what it was at its last
 * sync, and any subset of the names made, renamed and removed since. Weaker than any file system
 * that is in use.
 */
#ifndef TESTS_SUPPORT_POWER_H
#define TESTS_SUPPORT_POWER_H

#include "tests/support/faults/save_scene.h"

enum power_kind {
    POWER_WRITE,
    POWER_GROW, /* to at least `offset` bytes */
    POWER_CUT,  /* to `offset` bytes */
    POWER_SYNC,
    POWER_CREATE,
    POWER_RENAME,
    POWER_UNLINK,
    POWER_SYNC_FOLDER,
    POWER_BEGUN, /* from now on, version `offset` may be found */
    POWER_TOLD   /* from now on, none before version `offset` may be found */
};

typedef struct power_event {
    enum power_kind kind;
    int file;
    uint64_t offset;
    uint64_t nbytes;
    uint8_t *bytes;
    char name[64], to[64];
} power_event;

enum { POWER_MAX_FILES = 64, POWER_MAX_NAMES = 16, POWER_MAX_VERSIONS = 4 };

typedef struct power_folder {
    struct {
        char name[64]; /* "": free */
        int file;
    } entries[POWER_MAX_NAMES];
} power_folder;

extern struct power {
    pthread_mutex_t lock;
    power_event *events;
    size_t n_events;
    struct {
        dev_t device;
        ino_t number;
        uint8_t *bytes; /* what it had, durably, when recording began */
        uint64_t nbytes;
    } files[POWER_MAX_FILES];
    int n_files;
    power_folder before, now;
    struct {
        uint8_t *bytes; /* NULL: no file at all */
        size_t nbytes;
    } versions[POWER_MAX_VERSIONS];
    bool forget[POWER_TOLD + 1]; /* kinds that are not recorded: a save that does not do this */
} power;

/* ---- folders ---- */

int power_file_named(const power_folder *in, const char *name);

/* ---- recording ---- */

/* With the lock held. */
power_event *power_note(enum power_kind kind, int file);

/* A version that the path may come to hold: what the file there has, or nothing. */
void power_add_version(unsigned version);

/* Over the stand-ins of fault_set. */
void power_begin(void);
void power_end(void);

/* ---- what a power cut leaves of a file ---- */

enum power_choice { KEEP_ALL, KEEP_NONE, KEEP_ONE, LOSE_ONE, KEEP_SOME, KEEP_SOME_SECTORS };

/* Which of the blocks that were not synced reached the disk. */
typedef struct power_fate {
    enum power_choice choice;
    size_t which;
    uint32_t random;
    size_t n_blocks; /* counted on the way */
} power_fate;

typedef struct power_content {
    uint8_t *bytes;
    size_t nbytes, room;
} power_content;

/* The file after a power cut before event `moment`. */
void power_content_of(int file, size_t moment, power_fate *fate, power_content *content);

/* ---- what a power cut leaves of the folder ---- */

/*
 * Fills in one folder that a power cut before event `moment` can leave; `subset`: a bit for each
 * change since the last sync, whether it survives. Returns how many such changes there are.
 */
unsigned power_folder_of(size_t moment, uint64_t subset, power_folder *left);

#endif
