/* rng.h: seedable random numbers: SplitMix64 to seed, xoshiro256** to draw (Blackman and Vigna, 2018).
 *
 * The same seed gives the same stream on every machine.
 */
#ifndef MOTE_BASE_RNG_H
#define MOTE_BASE_RNG_H

#include <math.h>
#include <stdint.h>

struct mote_rng {
    uint64_t s[4];
};

static inline void mote_rng_seed(struct mote_rng *rng, uint64_t seed)
{
    for (int i = 0; i < 4; i++) {
        seed += 0x9E3779B97F4A7C15u;
        uint64_t z = seed;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
        rng->s[i] = z ^ (z >> 31);
    }
}

static inline uint64_t mote_rng_u64(struct mote_rng *rng)
{
    uint64_t *s = rng->s, x = s[1] * 5;
    uint64_t result = ((x << 7) | (x >> 57)) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = (s[3] << 45) | (s[3] >> 19);
    return result;
}

/* [0, 1) with 53 bits. */
static inline double mote_rng_unit(struct mote_rng *rng)
{
    return (double)(mote_rng_u64(rng) >> 11) * 0x1p-53;
}

/* [0, n), n >= 1; the bias is below 2^-32 for n < 2^32. */
static inline uint64_t mote_rng_below(struct mote_rng *rng, uint64_t n)
{
    __extension__ typedef unsigned __int128 wide;
    return (uint64_t)(((wide)mote_rng_u64(rng) * n) >> 64);
}

/* Two standard normal values at once (Box and Muller). */
static inline void mote_rng_normal2(struct mote_rng *rng, double out[2])
{
    double radius = sqrt(-2.0 * log(1.0 - mote_rng_unit(rng)));
    double angle = 6.283185307179586 * mote_rng_unit(rng);
    out[0] = radius * cos(angle);
    out[1] = radius * sin(angle);
}

#endif
