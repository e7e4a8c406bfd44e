/* Trains twice from the same weights. The first run takes four steps with one optimizer. The second
 * run saves a checkpoint after two steps. Another optimizer then loads it and takes the last two
 * steps. Both runs must give bitwise identical results, and the checkpoint must contain the weights
 * after two steps.
 * Usage: checkpoint FOLDER */
#include <muonrt/muonrt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kCount = 6 * 4 };
static float gradient[kCount];

static void check(muonrt_status_t status) {
  if (status == MUONRT_OK) return;
  printf("%s: %s\n", muonrt_status_get_name(status), muonrt_get_last_error());
  exit(1);
}

static muonrt_optimizer_t* make(muonrt_comm_t* comm, float* weights) {
  const int64_t shape[2] = {6, 4};
  muonrt_optimizer_t* optimizer;
  muonrt_group_t group;
  muonrt_param_t param;
  muonrt_group_init_muon(&group);
  muonrt_param_init(&param);
  param.name = "w";
  param.ndim = 2;
  param.shape = shape;
  param.data = weights;
  param.grad = gradient;
  check(muonrt_optimizer_create(&optimizer, comm, NULL, &group, 1, &param, 1));
  return optimizer;
}

static void step(muonrt_optimizer_t* optimizer, int number) {
  muonrt_step_args_t args;
  int i;
  for (i = 0; i < kCount; ++i) gradient[i] = (float)((i + 1) * (number + 3) % 7) - 3.0f;
  muonrt_step_args_init(&args);
  args.lr = 0.02;
  check(muonrt_optimizer_step(NULL, optimizer, &args));
}

/* Reads the parameter from a checkpoint without an optimizer. */
static void read_weights(float* weights, const char* folder) {
  muonrt_checkpoint_t* checkpoint;
  muonrt_checkpoint_tensor_t tensor;
  int64_t index;
  check(muonrt_checkpoint_open(&checkpoint, folder, NULL));
  check(muonrt_checkpoint_verify(checkpoint));
  check(muonrt_checkpoint_find_tensor(&index, checkpoint, "w", MUONRT_STATE_PARAM));
  muonrt_checkpoint_tensor_init(&tensor);
  check(muonrt_checkpoint_get_tensor(&tensor, checkpoint, index));
  if (tensor.ndim != 2 || tensor.shape[0] != 6 || tensor.shape[1] != 4) exit(1);
  check(muonrt_checkpoint_read(weights, kCount * (int64_t)sizeof(float), checkpoint, index));
  muonrt_checkpoint_destroy(checkpoint);
}

int main(int argc, char** argv) {
  float whole[kCount] = {0}, first[kCount] = {0}, second[kCount] = {0};
  float read[kCount];
  muonrt_comm_t* comm;
  muonrt_optimizer_t* optimizer;
  int number, same;

  if (argc != 2) return 2;
  check(muonrt_comm_create_self(&comm));
  optimizer = make(comm, whole);
  for (number = 0; number < 4; ++number) step(optimizer, number);
  muonrt_optimizer_destroy(optimizer);

  optimizer = make(comm, first);
  for (number = 0; number < 2; ++number) step(optimizer, number);
  check(muonrt_optimizer_save(optimizer, argv[1], NULL));
  muonrt_optimizer_destroy(optimizer);
  read_weights(read, argv[1]);

  optimizer = make(comm, second);
  check(muonrt_optimizer_load(optimizer, argv[1], NULL));
  for (; number < 4; ++number) step(optimizer, number);
  muonrt_optimizer_destroy(optimizer);
  muonrt_comm_destroy(comm);
  same = memcmp(whole, second, sizeof whole) == 0 && memcmp(read, first, sizeof read) == 0;
  puts(same ? "bitwise identical" : "different");
  return !same;
}
