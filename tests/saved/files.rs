//! Protects what a session file keeps: a conversation goes on from it bit for bit, a save appends what is new, and journals count.

use super::*;

#[test]
fn a_conversation_goes_on_from_its_file_bit_for_bit() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (i, engine) in engines().iter().enumerate() {
        let path = folder.path().join(format!("{i}.session"));
        let mut said = engine.session().expect("there is memory");
        let mut file = open(&path, engine);
        assert_eq!(
            (file.tokens(), file.cached(), file.data()),
            (&[][..], 0, &[][..])
        );
        say(&mut said, "Once upon a time there was a king", 9);
        file.save(&mut said, b"one").expect("it can be written");
        say(&mut said, " and a queen", 7);
        file.save(&mut said, b"two").expect("it can be written");
        assert_eq!(file.differs(), None);
        drop(file);

        let mut file = open(&path, engine);
        assert_eq!(file.tokens(), said.tokens());
        assert_eq!(file.cached(), said.cached());
        assert_eq!(file.data(), b"two");
        assert_eq!(file.differs(), None);
        let mut restored = engine.session().expect("there is memory");
        file.restore(&mut restored).expect("it is whole");
        assert_eq!(restored.tokens(), said.tokens());
        assert_eq!(restored.cached(), said.cached());
        let next = encode(engine, " who lived");
        let expected = last_logits(&mut said, &next);
        assert_eq!(last_logits(&mut restored, &next), expected);
    }
}
