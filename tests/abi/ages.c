/* C99 and C++17. A program with headers in which every growable struct lacks its last field (OLDER)
 * or has one more (NEWER) than the library's: see `ages`. */
#include <muonrt/muonrt.h>
#include <stdio.h>
#include <string.h>
#ifdef __cplusplus
#include <muonrt/muonrt.hpp>
#endif

static int failures;

#define EXPECT(what)                                                                 \
  do {                                                                               \
    if (!(what)) {                                                                   \
      fprintf(stderr, "ages.c:%d: %s (%s)\n", __LINE__, #what, muonrt_last_error()); \
      ++failures;                                                                    \
    }                                                                                \
  } while (0)

/* Fills a struct between bytes that must stay. */
#define FILL(name, ...)                                                \
  do {                                                                 \
    struct {                                                           \
      muonrt_##name##_t it;                                            \
      unsigned char behind[64];                                        \
    } s;                                                               \
    size_t i;                                                          \
    memset(&s, 0xAA, sizeof s);                                        \
    muonrt_##name##_init(&s.it __VA_ARGS__);                           \
    EXPECT(s.it.struct_size == sizeof s.it);                           \
    for (i = 0; i < sizeof s.behind; ++i) EXPECT(s.behind[i] == 0xAA); \
    muonrt_##name##_init(NULL __VA_ARGS__);                            \
  } while (0)
#define ROLE , MUONRT_ROLE_MUON

static void fill_all(void) {
#include "all_structs.h" /* FILL(allocator, ); and so on, which `ages` writes */
}

int main(void) {
  muonrt_comm_t* comm = NULL;
  muonrt_optimizer_t* optimizer = NULL;
  muonrt_optimizer_options_t options;
  muonrt_group_t groups[2];
  muonrt_param_t param;
  const int64_t shape[2] = {2, 3};
  float data[6] = {1, 2, 3, 4, 5, 6};
  const float grad[6] = {1, 0, 2, 0, 3, 1};
  muonrt_status_t status;

  fill_all();
#ifdef __cplusplus
  EXPECT(muonrt::param().struct_size == sizeof(muonrt_param_t));
  EXPECT(muonrt::muon_group().struct_size == sizeof(muonrt_group_t));
#endif
  EXPECT(muonrt_comm_create_self(&comm) == MUONRT_OK);
  muonrt_optimizer_options_init(&options);
  muonrt_group_init(&groups[0], MUONRT_ROLE_MUON);
  muonrt_group_init(&groups[1], MUONRT_ROLE_ADAMW);
  muonrt_param_init(&param);
  param.name = "w";
  param.group = 1; /* found at the stride of the caller's groups */
  param.ndim = 2;
  param.shape = shape;
  param.data = data;
  param.grad = grad;
  status = muonrt_optimizer_create(&optimizer, comm, &options, groups, 2, &param, 1);
#ifdef OLDER
  /* Before version 1.0 a struct that has grown is refused in its older sizes. */
  EXPECT(status == MUONRT_ERROR_INVALID_ARGUMENT);
  EXPECT(strstr(muonrt_last_error(), "struct_size") != NULL);
#else
  EXPECT(status == MUONRT_OK);
  muonrt_optimizer_destroy(optimizer);
  groups[1].added = 1; /* what the library does not know is not ignored */
  status = muonrt_optimizer_create(&optimizer, comm, &options, groups, 2, &param, 1);
  EXPECT(status == MUONRT_ERROR_INVALID_ARGUMENT);
  EXPECT(strstr(muonrt_last_error(), "newer library") != NULL);
#endif
  muonrt_comm_destroy(comm);
  return failures != 0;
}
