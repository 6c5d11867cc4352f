/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Traces under the thread sanitizer: saves, loads and jobs of several threads at once in one trace,
 * with workers of their own, while another thread turns tracing off and on.
 */
#include <berth.h>
#include <berth/config.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/race.h"

#define N_TENSORS 30
#define N_ELEMENTS 700
#define N_ROUNDS 6

static float elements[N_TENSORS + N_ELEMENTS];
static char *folder, *trace;

static void *save_and_load(void *context)
{
    static _Atomic int n;
    char name[32], *path;
    berth_value *root;
    berth_error error;

    (void)context;
    snprintf(name, sizeof name, "model%d.pt", n++);
    path = test_path(folder, name);
    berth_tree *tree = float_tensors(N_TENSORS, elements, N_ELEMENTS, 1, &root);
    for (int i = 0; i < N_ROUNDS; i++) {
        berth_checkpoint *checkpoint;
        berth_job *job;
        expect(berth_save_begin(TO_PATH(path), OF_VALUE(root), BERTH_SAVE_SNAPSHOT, NULL, &job,
                                &error) == 0,
               error.message);
        expect(berth_job_wait(job, BERTH_JOB_DONE, -1, &error) == 0, error.message);
        berth_job_free(job);
        expect(berth_open(path, NULL, &checkpoint, &error) == 0, error.message);
        expect(berth_load(checkpoint, NULL, NULL, &error) == 0, error.message);
        berth_close(checkpoint);
    }
    berth_tree_free(tree);
    free(path);
    return NULL;
}

static void *turn_off_and_on(void *context)
{
    berth_error error;

    (void)context;
    for (int i = 0; i < 10 * N_ROUNDS; i++) {
        expect(berth_config_set("trace", i % 3 ? trace : "", NULL, &error) == 0, error.message);
        (void)usleep(1000);
    }
    return NULL;
}

static void count_lines(const char *at)
{
    char line[8192] = "";
    int n_begun = 0, n_ended = 0;
    FILE *file = fopen(at, "r");

    expect(file != NULL, "there is no trace");
    while (fgets(line, sizeof line, file)) {
        n_begun += strstr(line, "\"ph\":\"B\"") != NULL;
        n_ended += strstr(line, "\"ph\":\"E\"") != NULL;
    }
    expect(strcmp(line, "]}\n") == 0, "it is not whole");
    expect(n_begun > 0 && n_begun == n_ended, "an operation has not ended");
    (void)fclose(file);
}

int main(void)
{
    void *(*const roles[])(void *) = {save_and_load, save_and_load, save_and_load, turn_off_and_on};
    berth_error error;

    folder = test_folder_new();
    trace = test_path(folder, "trace.json");
    expect(berth_config_parse("io.threads=3\nio.chunk_nbytes=4096\nsave.durability=none\n"
                              "load.method=read",
                              NULL, &error) == 0,
           error.message);
    expect(berth_config_set("trace", trace, NULL, &error) == 0, error.message);
    run_threads(4, roles, NULL);
    count_lines(trace);
    free(trace);
    test_folder_remove(folder);
    return 0;
}
