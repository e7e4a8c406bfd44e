#pragma once

/// Whether this program looks at every access, and so takes many times as long (GCC's macros).
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif
