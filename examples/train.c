/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Training: fits y = 2x + 1 by gradient descent with momentum. Every tenth step it begins a save of
 * a snapshot, and it trains on while the file is written. Started again, it resumes. The checkpoint
 * has what torch.optim.SGD.load_state_dict takes (check_train.py).
 *
 * usage: train FILE STEPS
 */
#include <berth.h>
#include <berth/more.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct training {
    float line[2];     /* the parameters: slope and offset */
    float momentum[2]; /* of each */
    int64_t step;
} training;

static const float RATE = 0.005F, MOMENTUM = 0.9F;

static void check(bool good, const char *message)
{
    if (good)
        return;
    fprintf(stderr, "%s\n", message);
    exit(1);
}

static void train_step(training *t)
{
    float x = (float)(t->step % 7) - 3;
    float difference = t->line[0] * x + t->line[1] - (2 * x + 1);
    const float gradient[2] = {2 * difference * x, 2 * difference};

    for (int i = 0; i < 2; i++) {
        t->momentum[i] = MOMENTUM * t->momentum[i] + gradient[i];
        t->line[i] -= RATE * t->momentum[i];
    }
    t->step++;
}

static berth_value *make_pair(berth_tree *tree, const float *elements)
{
    static const int64_t shape[] = {2};
    berth_tensor tensor = {.dtype = BERTH_FLOAT32, .rank = 1, .shape = shape, .data = elements};

    return berth_make_tensor(tree, &tensor);
}

/* {"model": {"line": …}, "optimizer": {"state": {0: {…}}, "param_groups": [{…}]}, "step": n} */
static berth_value *make_checkpoint(berth_tree *tree, const training *t)
{
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT),
                *model = berth_make_dict(tree, BERTH_KIND_ORDERED_DICT);
    berth_value *optimizer = berth_make_dict(tree, BERTH_KIND_DICT),
                *states = berth_make_dict(tree, BERTH_KIND_DICT);
    berth_value *state = berth_make_dict(tree, BERTH_KIND_DICT), *groups = berth_make_list(tree);
    berth_value *group = berth_make_dict(tree, BERTH_KIND_DICT), *numbers = berth_make_list(tree);

    berth_dict_set(model, "line", make_pair(tree, t->line));
    berth_dict_set(state, "momentum_buffer", make_pair(tree, t->momentum));
    berth_dict_set_value(states, berth_make_int(tree, 0), state);
    berth_list_append(numbers, berth_make_int(tree, 0));
    berth_dict_set(group, "lr", berth_make_float(tree, (double)RATE));
    berth_dict_set(group, "momentum", berth_make_float(tree, (double)MOMENTUM));
    berth_dict_set(group, "weight_decay", berth_make_float(tree, 0));
    berth_dict_set(group, "dampening", berth_make_float(tree, 0));
    berth_dict_set(group, "params", numbers);
    berth_list_append(groups, group);
    berth_dict_set(optimizer, "state", states);
    berth_dict_set(optimizer, "param_groups", groups);
    berth_dict_set(root, "model", model);
    berth_dict_set(root, "optimizer", optimizer);
    berth_dict_set(root, "step", berth_make_int(tree, t->step));
    return root; /* the tree remembers what failed, and the save reports it */
}

/* Copies the tensors and returns; the job writes the file meanwhile. */
static berth_job *begin_save(const char *path, const training *t)
{
    berth_error error;
    berth_job *job = NULL;
    berth_tree *tree = berth_tree_new(&error);

    check(tree != NULL, error.message);
    const berth_target target = berth_to_path(path);
    const berth_content content = berth_of_value(make_checkpoint(tree, t));
    check(berth_save_begin(&target, &content, BERTH_SAVE_SNAPSHOT, NULL, &job, &error) == 0,
          error.message);
    berth_tree_free(tree);
    return job;
}

static void finish_save(berth_job *job)
{
    berth_error error;

    check(!job || berth_job_wait(job, BERTH_JOB_DONE, -1, &error) == 0, error.message);
    berth_job_free(job);
}

/* Leaves *t as it is if there is no file yet. */
static void resume(const char *path, training *t)
{
    berth_error error;
    berth_checkpoint *model;

    if (berth_open(path, NULL, &model, &error) < 0) {
        check(error.system_errno == ENOENT, error.message);
        return;
    }
    const berth_tensor *line = berth_find_tensor(model, "model.line", NULL);
    const berth_tensor *momentum =
        berth_find_tensor(model, "optimizer.state.0.momentum_buffer", NULL);
    check(line && line->dtype == BERTH_FLOAT32 && momentum && momentum->dtype == BERTH_FLOAT32,
          "the file has no float32 tensors model.line and momentum_buffer");
    check(berth_tensor_read(model, line, 0, 2, t->line, &error) == 0 &&
              berth_tensor_read(model, momentum, 0, 2, t->momentum, &error) == 0,
          error.message);
    berth_as_int(berth_find(model, "step", NULL), &t->step);
    berth_close(model);
    printf("resumed at step %lld\n", (long long)t->step);
}

int main(int argc, char **argv)
{
    training t = {{0, 0}, {0, 0}, 0};
    berth_job *job = NULL;

    check(argc == 3, "usage: train FILE STEPS");
    resume(argv[1], &t);
    for (int64_t end = t.step + atoll(argv[2]); t.step < end;) {
        train_step(&t);
        if (t.step % 10 == 0 || t.step == end) {
            finish_save(job); /* the last one; usually it ended long ago */
            job = begin_save(argv[1], &t);
        }
    }
    finish_save(job);
    printf("step %lld: y = %.3f x + %.3f\n", (long long)t.step, (double)t.line[0],
           (double)t.line[1]);
    return 0;
}
