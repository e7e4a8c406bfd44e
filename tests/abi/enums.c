/* Passes values that are not in the enum, which only C permits. Each call must return
 * INVALID_ARGUMENT, with a message that contains the value. */
#include <muonrt/dlpack.h>
#include <muonrt/muonrt.h>
#include <stdio.h>
#include <string.h>

static int failures;

#define EXPECT(condition)                                                                      \
  do {                                                                                         \
    if (!(condition)) {                                                                        \
      fprintf(stderr, "enums.c:%d: %s (%s)\n", __LINE__, #condition, muonrt_get_last_error()); \
      ++failures;                                                                              \
    }                                                                                          \
  } while (0)

/* The argument is the folder of a checkpoint. */
int main(int argc, char** argv) {
  const int values[] = {5, 7, -1, 2147483647};
  const int64_t shape[2] = {2, 3};
  float data[6] = {1, 2, 3, 4, 5, 6};
  char text[64] = "unchanged";
  int64_t needed = -5;
  muonrt_dltensor_t tensor;
  enum muonrt_dtype dtype = MUONRT_DTYPE_F16;
  void* elements = text;
  muonrt_comm_t* comm;
  muonrt_optimizer_t* optimizer;
  muonrt_group_t group;
  muonrt_param_t param;
  size_t i;

  EXPECT(muonrt_comm_create_self(&comm) == MUONRT_OK);
  muonrt_group_init_muon(&group);
  muonrt_param_init(&param);
  param.name = "w";
  param.ndim = 2;
  param.shape = shape;
  param.data = data;
  if (muonrt_optimizer_create(&optimizer, comm, NULL, &group, 1, &param, 1) != MUONRT_OK) {
    fprintf(stderr, "%s\n", muonrt_get_last_error());
    return 1;
  }
  memset(&tensor, 0, sizeof tensor);
  for (i = 0; i < sizeof values / sizeof values[0]; ++i) {
    const enum muonrt_format format = (enum muonrt_format)values[i];
    char expected[64];
    snprintf(expected, sizeof expected, ": format is %d,", values[i]);
    EXPECT(muonrt_optimizer_describe_plan(text, sizeof text, &needed, optimizer, format) ==
           MUONRT_ERROR_INVALID_ARGUMENT);
    EXPECT(strstr(muonrt_get_last_error(), expected) != NULL);
    EXPECT(muonrt_optimizer_get_trace(text, sizeof text, &needed, optimizer, format) ==
           MUONRT_ERROR_INVALID_ARGUMENT);
    EXPECT(strstr(muonrt_get_last_error(), expected) != NULL);
    snprintf(expected, sizeof expected, ": level is %d,", values[i]);
    EXPECT(muonrt_set_log(NULL, NULL, (enum muonrt_log_level)values[i]) ==
           MUONRT_ERROR_INVALID_ARGUMENT);
    EXPECT(strstr(muonrt_get_last_error(), expected) != NULL);
    snprintf(expected, sizeof expected, "'w' is read for device %d,", values[i]);
    EXPECT(muonrt_dlpack_read(&elements, &dtype, &tensor, "w", (enum muonrt_device)values[i], 0) ==
           MUONRT_ERROR_INVALID_ARGUMENT);
    EXPECT(strstr(muonrt_get_last_error(), expected) != NULL);
  }
  {
    const int kinds[] = {-2, 5, 2147483647};
    muonrt_checkpoint_t* checkpoint = NULL;
    EXPECT(argc == 2 && muonrt_optimizer_save(optimizer, argv[1], NULL) == MUONRT_OK);
    EXPECT(muonrt_checkpoint_open(&checkpoint, argv[1], NULL) == MUONRT_OK);
    for (i = 0; i < sizeof kinds / sizeof kinds[0]; ++i) {
      char expected[64];
      snprintf(expected, sizeof expected, ": kind is %d,", kinds[i]);
      EXPECT(muonrt_checkpoint_find_tensor(&needed, checkpoint, "w",
                                           (enum muonrt_state_kind)kinds[i]) ==
             MUONRT_ERROR_INVALID_ARGUMENT);
      EXPECT(strstr(muonrt_get_last_error(), expected) != NULL);
    }
    muonrt_checkpoint_destroy(checkpoint);
  }
  EXPECT(strcmp(text, "unchanged") == 0 && needed == -5);
  EXPECT(elements == text && dtype == MUONRT_DTYPE_F16);
  muonrt_optimizer_destroy(optimizer);
  muonrt_comm_destroy(comm);
  return failures != 0;
}
