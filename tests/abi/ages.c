/* A program in C99 and C++17 for headers of a different version; see `ages`. Compared with the
 * library, the growable structs in these headers lack the last field (OLDER), or have one field
 * more (NEWER). */
#include <muonrt/muonrt.h>
#include <stdio.h>
#include <string.h>
#ifdef __cplusplus
#include <muonrt/muonrt.hpp>
#endif

static int failures;

#define EXPECT(what)                                                                     \
  do {                                                                                   \
    if (!(what)) {                                                                       \
      fprintf(stderr, "ages.c:%d: %s (%s)\n", __LINE__, #what, muonrt_get_last_error()); \
      ++failures;                                                                        \
    }                                                                                    \
  } while (0)

/* Fills a struct with the macro `init`, which must not change the bytes after the struct. */
#define FILL(name, init)                                               \
  do {                                                                 \
    struct {                                                           \
      muonrt_##name##_t it;                                            \
      unsigned char behind[64];                                        \
    } s;                                                               \
    size_t i;                                                          \
    memset(&s, 0xAA, sizeof s);                                        \
    init(&s.it);                                                       \
    EXPECT(s.it.struct_size == sizeof s.it);                           \
    for (i = 0; i < sizeof s.behind; ++i) EXPECT(s.behind[i] == 0xAA); \
    init(NULL);                                                        \
  } while (0)

static void fill_all(void) {
#include "all_structs.h" /* `ages` writes lines such as FILL(allocator, muonrt_allocator_init); */
}

int main(void) {
  muonrt_comm_t* comm = NULL;
  muonrt_optimizer_t* optimizer = NULL;
  muonrt_optimizer_options_t options;
  muonrt_group_t groups[2];
  muonrt_param_t params[2];
  muonrt_step_args_t args;
  muonrt_step_report_t report;
  const char* const names[2] = {"a", "b"};
  const int64_t shape[2] = {2, 3};
  float data[2][6] = {{1, 2, 3, 4, 5, 6}, {6, 5, 4, 3, 2, 1}};
  const float grad[2][6] = {{1, 0, 2, 0, 3, 1}, {3, 1, 0, 2, 1, 0}};
  muonrt_status_t status;
  int i;

  fill_all();
#ifdef __cplusplus
  EXPECT(muonrt::param().struct_size == sizeof(muonrt_param_t));
  EXPECT(muonrt::muon_group().struct_size == sizeof(muonrt_group_t));
#endif
  EXPECT(muonrt_comm_create_self(&comm) == MUONRT_OK);
  muonrt_optimizer_options_init(&options);
  muonrt_group_init_muon(&groups[0]);
  muonrt_group_init_adamw(&groups[1]);
  for (i = 0; i < 2; ++i) { /* the stride is the size of the program's structs */
    muonrt_param_init(&params[i]);
    params[i].name = names[i];
    params[i].group = i;
    params[i].ndim = 2;
    params[i].shape = shape;
    params[i].data = data[i];
    params[i].grad = grad[i];
  }
  muonrt_step_args_init(&args);
  args.lr = 0.1;
  muonrt_step_report_init(&report);
  status = muonrt_optimizer_create(&optimizer, comm, &options, groups, 2, params, 2);
#ifdef OLDER
  /* Before version 1.0, a struct that has grown is rejected in its older sizes. */
  EXPECT(status == MUONRT_ERROR_INVALID_ARGUMENT);
  EXPECT(strstr(muonrt_get_last_error(), "struct_size") != NULL);
#else
  EXPECT(status == MUONRT_OK);
  EXPECT(muonrt_optimizer_step(&report, optimizer, &args) == MUONRT_OK);
  EXPECT(report.step == 1 && report.added == 0 && data[0][0] != 1.0f && data[1][0] != 6.0f);
  args.added = 1; /* a field that the library does not have must be zero */
  EXPECT(muonrt_optimizer_step(&report, optimizer, &args) == MUONRT_ERROR_INVALID_ARGUMENT);
  EXPECT(strstr(muonrt_get_last_error(), "newer library") != NULL);
  muonrt_optimizer_destroy(optimizer);
  groups[1].added = 1;
  status = muonrt_optimizer_create(&optimizer, comm, &options, groups, 2, params, 2);
  EXPECT(status == MUONRT_ERROR_INVALID_ARGUMENT);
  EXPECT(strstr(muonrt_get_last_error(), "newer library") != NULL);
#endif
  muonrt_comm_destroy(comm);
  return failures != 0;
}
