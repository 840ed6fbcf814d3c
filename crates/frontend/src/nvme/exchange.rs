//! Diffie-Hellman exchanges in the groups of RFC 7919. They add to DH-HMAC-CHAP that a recorded
//! authentication cannot be used to try secrets: the challenge is combined with the shared value.

use crypto_bigint::modular::{FixedMontyForm, FixedMontyParams};
use crypto_bigint::{Encoding, Odd, U384, U2048, U3072, U4096, Uint};
use forebay_wire::nvme::auth::AuthGroup;

/// Bits of a private exponent. RFC 7919, appendix A, requires at least 225, 275 and 325 bits for the groups.
const EXPONENT_BITS: u32 = 384;

/// The prime of ffdhe2048 (RFC 7919, appendix A), from its definition.
const FFDHE_2048: &str = "\
    ffffffffffffffffadf85458a2bb4a9aafdc5620273d3cf1d8b9c583ce2d3695a9e13641146433fbcc939dce249b3ef9\
    7d2fe363630c75d8f681b202aec4617ad3df1ed5d5fd65612433f51f5f066ed0856365553ded1af3b557135e7f57c935\
    984f0c70e0e68b77e2a689daf3efe8721df158a136ade73530acca4f483a797abc0ab182b324fb61d108a94bb2c8e3fb\
    b96adab760d7f4681d4f42a3de394df4ae56ede76372bb190b07a7c8ee0a6d709e02fce1cdf7e2ecc03404cd28342f61\
    9172fe9ce98583ff8e4f1232eef28183c3fe3b1b4c6fad733bb5fcbc2ec22005c58ef1837d1683b2c6f34a26c1b2effa\
    886b423861285c97ffffffffffffffff";
/// The prime of ffdhe3072 (RFC 7919, appendix A), from its definition.
const FFDHE_3072: &str = "\
    ffffffffffffffffadf85458a2bb4a9aafdc5620273d3cf1d8b9c583ce2d3695a9e13641146433fbcc939dce249b3ef9\
    7d2fe363630c75d8f681b202aec4617ad3df1ed5d5fd65612433f51f5f066ed0856365553ded1af3b557135e7f57c935\
    984f0c70e0e68b77e2a689daf3efe8721df158a136ade73530acca4f483a797abc0ab182b324fb61d108a94bb2c8e3fb\
    b96adab760d7f4681d4f42a3de394df4ae56ede76372bb190b07a7c8ee0a6d709e02fce1cdf7e2ecc03404cd28342f61\
    9172fe9ce98583ff8e4f1232eef28183c3fe3b1b4c6fad733bb5fcbc2ec22005c58ef1837d1683b2c6f34a26c1b2effa\
    886b4238611fcfdcde355b3b6519035bbc34f4def99c023861b46fc9d6e6c9077ad91d2691f7f7ee598cb0fac186d91c\
    aefe130985139270b4130c93bc437944f4fd4452e2d74dd364f2e21e71f54bff5cae82ab9c9df69ee86d2bc522363a0d\
    abc521979b0deada1dbf9a42d5c4484e0abcd06bfa53ddef3c1b20ee3fd59d7c25e41d2b66c62e37ffffffffffffffff";
/// The prime of ffdhe4096 (RFC 7919, appendix A), from its definition.
const FFDHE_4096: &str = "\
    ffffffffffffffffadf85458a2bb4a9aafdc5620273d3cf1d8b9c583ce2d3695a9e13641146433fbcc939dce249b3ef9\
    7d2fe363630c75d8f681b202aec4617ad3df1ed5d5fd65612433f51f5f066ed0856365553ded1af3b557135e7f57c935\
    984f0c70e0e68b77e2a689daf3efe8721df158a136ade73530acca4f483a797abc0ab182b324fb61d108a94bb2c8e3fb\
    b96adab760d7f4681d4f42a3de394df4ae56ede76372bb190b07a7c8ee0a6d709e02fce1cdf7e2ecc03404cd28342f61\
    9172fe9ce98583ff8e4f1232eef28183c3fe3b1b4c6fad733bb5fcbc2ec22005c58ef1837d1683b2c6f34a26c1b2effa\
    886b4238611fcfdcde355b3b6519035bbc34f4def99c023861b46fc9d6e6c9077ad91d2691f7f7ee598cb0fac186d91c\
    aefe130985139270b4130c93bc437944f4fd4452e2d74dd364f2e21e71f54bff5cae82ab9c9df69ee86d2bc522363a0d\
    abc521979b0deada1dbf9a42d5c4484e0abcd06bfa53ddef3c1b20ee3fd59d7c25e41d2b669e1ef16e6f52c3164df4fb\
    7930e9e4e58857b6ac7d5f42d69f6d187763cf1d5503400487f55ba57e31cc7a7135c886efb4318aed6a1e012d9e6832\
    a907600a918130c46dc778f971ad0038092999a333cb8b7a1a1db93d7140003c2a4ecea9f98d0acc0a8291cdcec97dcf\
    8ec9b55a7f88a46b4db5a851f44182e1c68a007e5e655f6affffffffffffffff";

/// One side of an exchange: the private exponent. The exponent is used for one exchange only.
pub(super) struct Exchange {
    group: AuthGroup,
    exponent: U384,
}

/// `base` to the power `exponent`, in a time that depends on neither; `None` if `base` is trivial: 0, 1,
/// the prime less 1, or greater (RFC 7919, 5.1).
fn power<const N: usize>(prime: &str, base: &Uint<N>, exponent: &U384) -> Option<Vec<u8>>
where
    Uint<N>: Encoding,
{
    let prime = Uint::<N>::from_be_hex(prime);
    let last = prime.wrapping_sub(&Uint::ONE);
    if *base <= Uint::ONE || *base >= last {
        return None;
    }
    let modulus = Odd::new(prime).into_option()?;
    let params = FixedMontyParams::new_vartime(modulus);
    let result = FixedMontyForm::new(base, &params).pow_bounded_exp(exponent, EXPONENT_BITS).retrieve();
    Some(Encoding::to_be_bytes(&result).as_ref().to_vec())
}

impl Exchange {
    /// Begins an exchange with a random exponent; `None` for [`AuthGroup::Null`].
    ///
    /// # Errors
    /// The system provides no random bytes.
    pub fn new(group: AuthGroup) -> Result<Option<Exchange>, getrandom::Error> {
        if group == AuthGroup::Null {
            return Ok(None);
        }
        let mut random = [0; EXPONENT_BITS as usize / 8];
        getrandom::fill(&mut random)?;
        Ok(Some(Exchange { group, exponent: U384::from_be_slice(&random) }))
    }

    pub fn group(&self) -> AuthGroup {
        self.group
    }

    /// The public value, as long as the prime.
    pub fn public(&self) -> Option<Vec<u8>> {
        let mut generator = vec![0; self.group.len()];
        *generator.last_mut()? = 2;
        self.shared(&generator)
    }

    /// The value that both sides share, as long as the prime; `None` if the public value of the other side is
    /// invalid.
    pub fn shared(&self, public: &[u8]) -> Option<Vec<u8>> {
        if public.len() != self.group.len() {
            return None;
        }
        match self.group {
            AuthGroup::Null => None,
            AuthGroup::Ffdhe2048 => power(FFDHE_2048, &U2048::from_be_slice(public), &self.exponent),
            AuthGroup::Ffdhe3072 => power(FFDHE_3072, &U3072::from_be_slice(public), &self.exponent),
            AuthGroup::Ffdhe4096 => power(FFDHE_4096, &U4096::from_be_slice(public), &self.exponent),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUPS: [AuthGroup; 3] = [AuthGroup::Ffdhe2048, AuthGroup::Ffdhe3072, AuthGroup::Ffdhe4096];

    #[test]
    fn both_sides_share_a_value() {
        for group in GROUPS {
            let [a, b] = [(); 2].map(|()| Exchange::new(group).unwrap().unwrap());
            let (of_a, of_b) = (a.public().unwrap(), b.public().unwrap());
            let shared = a.shared(&of_b).unwrap();
            assert_eq!((&shared, shared.len()), (&b.shared(&of_a).unwrap(), group.len()));
        }
        assert!(Exchange::new(AuthGroup::Null).unwrap().is_none());
    }

    #[test]
    fn powers_are_those_that_python_computes() {
        for (group, last) in GROUPS.into_iter().zip(LAST) {
            let exponent = U384::from_be_slice(&[0xa5; 48]);
            let public = Exchange { group, exponent }.public().unwrap();
            assert_eq!(forebay_wire::iscsi::text::hex(&public[public.len() - 16..]), last);
        }
    }

    /// The last 16 bytes of `pow(2, 0xa5a5…, prime)`, for each group.
    const LAST: [&str; 3] = [
        "0xf82558ae9f218a36b97a1ae46d14b7d2",
        "0x31fc0483a24065d990b4e663fbe1321d",
        "0x873b10d475d4aa849f15ef8f775b7d7a",
    ];

    #[test]
    fn trivial_values_are_refused() {
        for group in GROUPS {
            let exchange = Exchange::new(group).unwrap().unwrap();
            let value = |first: u8, last: u8| {
                let mut value = vec![first; group.len()];
                *value.last_mut().unwrap() = last;
                value
            };
            for bad in [value(0, 0), value(0, 1), value(0xff, 0xff), vec![], vec![2; group.len() - 1]] {
                assert!(exchange.shared(&bad).is_none(), "{bad:?}");
            }
            assert!(exchange.shared(&value(0, 2)).is_some());
        }
    }
}
