#pragma once

#include <cstdint>

/// Matrix shapes for all tests that iterate over shapes.
namespace catalogue {

struct Shape {
  int64_t rows, cols;
  const char* why;
};

constexpr Shape kShapes[] = {
    {1, 1, "a scalar"},
    {1, 37, "one row, prime"},
    {41, 1, "one column, prime"},
    {2, 2, "smaller than most meshes"},
    {3, 5, "odd, fewer rows than ranks"},
    {5, 3, "odd, fewer columns than ranks"},
    {7, 7, "prime, square"},
    {13, 64, "prime rows, wide"},
    {64, 13, "prime columns, tall"},
    {16, 16, "even, square"},
    {31, 33, "straddles a multiple of 16"},
    {48, 17, "uneven over 2, 4, 5 columns"},
    {24, 96, "aspect 4"},
    {96, 24, "aspect 1/4"},
    {65, 65, "one more than a tile"},
    {128, 40, "tall, larger than a small tile"},
    {12, 1, "a gate"},
    {67, 131, "primes, larger than the mesh"},
};

}  // namespace catalogue
