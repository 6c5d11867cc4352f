/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Traces as a program makes them: jobs, two threads, several files, forks. tests/command/traces.py
 * judges them by all rules of their format; here each event is a line.
 */
#include <berth/config.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/job_scene.h"
#include "tests/support/scene.h"

static berth_error error;
static char *trace_path;

static void set_up(void)
{
    begin_jobs();
    trace_path = test_path(folder, "trace.json");
    assert_ok(berth_config_set("trace", trace_path, NULL, &error));
    assert_ok(berth_config_set("io.threads", "3", NULL, &error));
    assert_ok(berth_config_set("io.chunk_nbytes", "1000", NULL, &error));
}

static void tear_down(void)
{
    free(trace_path);
    end_jobs();
}

TestSuite(trace, .init = set_up, .fini = tear_down);

/* ---- one event a line ---- */

static double number_in(const char *line, const char *name)
{
    char key[40];

    snprintf(key, sizeof key, "\"%s\":", name);
    const char *at = strstr(line, key);
    return at ? strtod(at + strlen(key), NULL) : 0;
}

static bool line_has(const char *line, const char *text)
{
    return strstr(line, text) != NULL;
}

/* Of the events of one operation, 0: of all. */
typedef struct sums {
    int n_begun, n_ended, n_tracks;
    double request_nbytes, n_requests, disk_us, work_us;
    double moved_nbytes, total_us; /* of the statistics at the end */
    double begin_us, end_us;
} sums;

static void sums_add_line(sums *all, const char *line, int operation)
{
    if (operation && number_in(line, "operation") != operation)
        return;
    all->n_tracks += line_has(line, "\"thread_name\"");
    if (line_has(line, "\"ph\":\"B\"") && all->n_begun++ == 0)
        all->begin_us = number_in(line, "ts");
    if (line_has(line, "\"ph\":\"E\"")) {
        all->n_ended++;
        all->end_us = number_in(line, "ts");
        all->moved_nbytes += number_in(line, "moved_nbytes");
        all->total_us += number_in(line, "total_us");
    }
    if (!line_has(line, "\"ph\":\"X\""))
        return;
    if (line_has(line, "\"cat\":\"request,")) {
        all->request_nbytes += number_in(line, "nbytes");
        all->n_requests += line_has(line, "n_requests") ? number_in(line, "n_requests") : 1;
    }
    if (line_has(line, "disk\""))
        all->disk_us += number_in(line, "dur");
    if (line_has(line, "\"cat\":\"work\""))
        all->work_us += number_in(line, "dur");
}

static sums sums_of(const char *at, int operation)
{
    FILE *file = fopen(at, "r");
    char line[8192];
    sums all = {0};
    bool has_end = false;

    cr_assert(file, "%s", at);
    while (fgets(line, sizeof line, file)) {
        size_t n = strlen(line);
        cr_assert_eq(line[n - 1], '\n');
        has_end = !strcmp(line, "]}\n");
        sums_add_line(&all, line, operation);
    }
    fclose(file);
    cr_assert(has_end, "it is whole");
    return all;
}

static void expect_sums(const sums *all, const berth_stats *stats)
{
    cr_expect_eq(all->request_nbytes, (double)stats->moved_nbytes, "%g", all->request_nbytes);
    cr_expect_eq(all->n_requests, (double)stats->n_requests, "%g", all->n_requests);
    cr_expect_eq(all->moved_nbytes, (double)stats->moved_nbytes);
    cr_expect_lt(fabs(all->total_us - stats->total_seconds * 1e6), 0.01);
    cr_expect_lt(fabs(all->disk_us - stats->disk_seconds * 1e6), 0.01 * all->n_requests + 1);
    cr_expect_lt(fabs(all->work_us - stats->render_seconds * 1e6), 0.01 * all->n_requests + 1);
}

/* ---- operations ---- */

Test(trace, of_a_save_and_of_a_job_has_the_sums_of_their_statistics)
{
    berth_stats stats;
    const berth_params params = {.stats = &stats};
    berth_job *job;

    assert_ok(berth_save(path, state, &params, &error));
    sums all = sums_of(trace_path, 1);
    expect_sums(&all, &stats);
    cr_expect_eq(all.n_begun, 1);
    cr_expect_lt(fabs(all.end_us - all.begin_us - stats.total_seconds * 1e6), 0.01);
    /* A job: a slice on the thread that begins it, one on its own. */
    assert_ok(berth_save_begin(TO_PATH(path), OF_VALUE(state), BERTH_SAVE_SNAPSHOT, &params, &job,
                               &error));
    check_wait(job, 0);
    berth_job_free(job);
    all = sums_of(trace_path, 2);
    expect_sums(&all, &stats);
    cr_expect_eq(all.n_begun, 2);
    cr_expect_eq(all.n_ended, 2);
    cr_expect_lt(fabs(all.end_us - all.begin_us - stats.total_seconds * 1e6), 0.01);
}

Test(trace, of_loads_has_the_sums_of_their_statistics)
{
    static const char *const methods[] = {"read", "direct"};
    berth_stats opened, loaded;
    const berth_params open_params = {.stats = &opened}, load_params = {.stats = &loaded};
    berth_checkpoint *checkpoint;
    float *into = malloc(WEIGHTS_NBYTES);
    int operation = 0;

    assert_ok(berth_config_set("trace", "", NULL, &error));
    assert_ok(berth_save(path, state, NULL, &error));
    assert_ok(berth_config_set("trace", trace_path, NULL, &error));
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        assert_ok(berth_config_set("load.method", methods[i], NULL, &error));
        assert_ok(berth_open(path, &open_params, &checkpoint, &error));
        sums all = sums_of(trace_path, ++operation);
        all.disk_us = opened.disk_seconds; /* opening does not count it */
        expect_sums(&all, &opened);
        const berth_destination destination = {.tensor =
                                                   berth_find_tensor(checkpoint, "weight", &error),
                                               .address = into,
                                               .nbytes = WEIGHTS_NBYTES};
        cr_assert(destination.tensor, "%s", error.message);
        assert_ok(berth_load_into(checkpoint, &destination, 1, &load_params, &error));
        all = sums_of(trace_path, ++operation);
        expect_sums(&all, &loaded);
        assert_ok(berth_load(checkpoint, NULL, &load_params, &error));
        all = sums_of(trace_path, ++operation);
        expect_sums(&all, &loaded);
        cr_expect_gt(all.n_requests, 1);
        berth_close(checkpoint);
    }
    free(into);
}

Test(trace, of_short_reads_is_complete_when_the_checkpoint_is_closed)
{
    enum { N = 200 };
    berth_checkpoint *checkpoint;
    float element;

    assert_ok(berth_save(path, state, NULL, &error));
    assert_ok(berth_config_set("load.method", "read", NULL, &error));
    assert_ok(berth_open(path, NULL, &checkpoint, &error));
    const berth_tensor *weight = berth_find_tensor(checkpoint, "weight", &error);
    sums before = sums_of(trace_path, 0);
    for (int i = 0; i < N; i++)
        assert_ok(berth_tensor_read(checkpoint, weight, i, 1, &element, &error));
    for (int i = 0; i < N; i++) /* the first loads the storage */
        cr_assert(berth_tensor_data(checkpoint, weight, &error));
    berth_close(checkpoint);
    sums after = sums_of(trace_path, 0);
    cr_expect_eq(after.n_ended - before.n_ended, N + 1);
    cr_expect_eq(after.request_nbytes - before.request_nbytes, N * sizeof element + WEIGHTS_NBYTES);
}

/* ---- files ---- */

Test(trace, is_of_the_patch_or_the_configuration_of_the_call)
{
    char *other = test_path(folder, "other.json"), option[400];
    berth_config *config = berth_config_new(&error);
    const berth_params params = {.config = config};

    snprintf(option, sizeof option, "trace=%s", other);
    assert_ok(berth_config_apply(config, option, &error));
    assert_ok(berth_save(path, state, &params, &error));
    cr_expect_eq(sums_of(other, 0).n_begun, 1);
    cr_expect_neq(access(trace_path, F_OK), 0);
    patch(option);
    assert_ok(berth_save(path, state, NULL, &error));
    berth_config_unpatch(NULL);
    assert_ok(berth_save(path, state, NULL, &error));
    cr_expect_eq(sums_of(other, 0).n_begun, 2);
    cr_expect_eq(sums_of(trace_path, 0).n_begun, 1);
    berth_config_free(config);
    free(other);
}

static void *save_three_times(void *to)
{
    berth_error own;

    for (int i = 0; i < 3; i++)
        assert_ok(berth_save(to, state, NULL, &own));
    return NULL;
}

Test(trace, has_operations_of_threads_that_save_at_once)
{
    enum { N = 3 };
    pthread_t threads[N];
    char *paths[N], name[32];
    double nbytes = 0;

    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof name, "archive%d.pt", i);
        paths[i] = test_path(folder, name);
        cr_assert_eq(pthread_create(&threads[i], NULL, save_three_times, paths[i]), 0);
    }
    for (int i = 0; i < N; i++)
        cr_assert_eq(pthread_join(threads[i], NULL), 0);
    for (int operation = 1; operation <= 3 * N; operation++) {
        sums all = sums_of(trace_path, operation);
        cr_expect_eq(all.n_begun, 1);
        cr_expect_eq(all.n_ended, 1);
        cr_expect_eq(all.request_nbytes, all.moved_nbytes);
        nbytes += all.moved_nbytes;
    }
    cr_expect_eq(sums_of(trace_path, 0).request_nbytes, nbytes);
    for (int i = 0; i < N; i++)
        free(paths[i]);
}

/* ---- what ends a trace ---- */

static char logged[400];
static int n_logged;

static void keep_line(void *context, const char *line)
{
    (void)context;
    n_logged++;
    snprintf(logged, sizeof logged, "%s", line);
}

Test(trace, that_another_process_writes_ends_and_is_logged_once)
{
    berth_set_log(keep_line, NULL);
    assert_ok(berth_save(path, state, NULL, &error));
    cr_assert_eq(n_logged, 0);
    int fd = open(trace_path, O_WRONLY | O_APPEND);
    cr_assert_eq(write(fd, "x", 1), 1);
    close(fd);
    for (int i = 0; i < 3; i++)
        assert_ok(berth_save(path, state, NULL, &error));
    cr_expect_eq(n_logged, 1);
    cr_expect(strstr(logged, "trace.json: another process has written it; with %p in its name"),
              "%s", logged);
    check_file(path, expected, expected_nbytes);
    berth_set_log(NULL, NULL);
}

Test(trace, stays_where_the_program_was)
{
    char before[400];

    cr_assert(getcwd(before, sizeof before) && chdir(folder) == 0);
    assert_ok(berth_config_set("trace", "relative.json", NULL, &error));
    assert_ok(berth_save(path, state, NULL, &error));
    cr_assert_eq(chdir("/"), 0);
    assert_ok(berth_save(path, state, NULL, &error));
    cr_assert_eq(chdir(folder), 0);
    cr_expect_eq(sums_of("relative.json", 0).n_ended, 2);
    cr_assert_eq(chdir(before), 0);
}

/* X11. Returns how many operations a child's trace has; -1: it has none. */
static int child_saves(const char *name)
{
    char own[400];

    assert_ok(berth_config_set("trace", name, NULL, &error));
    assert_ok(berth_save(path, state, NULL, &error));
    n_logged = 0;
    pid_t child = fork();
    if (child == 0) {
        bool is_saved = berth_save(path, state, NULL, &error) == 0 &&
                        berth_save(path, state, NULL, &error) == 0;
        _exit(is_saved ? n_logged : 99);
    }
    int status;
    cr_assert_eq(waitpid(child, &status, 0), child);
    bool has_own = strstr(name, "%p");
    cr_expect_eq(WEXITSTATUS(status), has_own ? 0 : 1, "logs once that it writes none");
    assert_ok(berth_save(path, state, NULL, &error));
    snprintf(own, sizeof own, "%s/t-%ld.json", folder, (long)child);
    return access(own, F_OK) == 0 ? sums_of(own, 0).n_ended : -1;
}

Test(trace, of_a_forked_process_is_a_file_of_its_own_or_none)
{
    char name[400];

    berth_set_log(keep_line, NULL);
    cr_expect_eq(child_saves(trace_path), -1);
    cr_expect_eq(sums_of(trace_path, 0).n_ended, 2, "the parent's");
    snprintf(name, sizeof name, "%s/t-%%p.json", folder);
    cr_expect_eq(child_saves(name), 2);
    snprintf(name, sizeof name, "%s/t-%ld.json", folder, (long)getpid());
    cr_expect_eq(sums_of(name, 0).n_ended, 2);
    berth_set_log(NULL, NULL);
}

/* A fork in the middle of an operation: the parent's trace has its events once. */
static int fork_once(void *context, uint64_t done_nbytes, uint64_t total_nbytes)
{
    bool *is_forked = context;

    (void)done_nbytes, (void)total_nbytes;
    if (*is_forked)
        return 0;
    *is_forked = true;
    pid_t child = fork();
    if (child == 0)
        _exit(berth_save("/dev/null/x", state, NULL, &error) < 0 ? 0 : 1);
    int status;
    cr_assert(waitpid(child, &status, 0) == child && status == 0);
    return 0;
}

Test(trace, of_an_operation_that_forks_is_the_parents)
{
    bool is_forked = false;
    berth_stats stats;
    const berth_params params = {
        .progress = fork_once, .progress_context = &is_forked, .stats = &stats};

    assert_ok(berth_save(path, state, &params, &error));
    cr_assert(is_forked);
    sums all = sums_of(trace_path, 1);
    expect_sums(&all, &stats);
    cr_expect_eq(all.n_begun, 1);
}
